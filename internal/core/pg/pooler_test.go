package pg_test

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// A pooler in statement mode may run each statement of a transaction in another session. The guard has turned
// JIT off only in the first of these sessions, so ReadGuards detects the others by JIT.
func TestDividedTransactionIsDetected(t *testing.T) {
	guarded := pg.Guard([]*pgdb.Statement{{SQL: "SELECT 1"}}, false)
	replaces := guarded[2]
	for jit, want := range []error{nil, pg.ErrSeveralSessions} {
		replaces.Result = nil
		for _, value := range []int{0, 0, jit, 0} {
			replaces.Result = binary.BigEndian.AppendUint32(replaces.Result, 8)
			replaces.Result = binary.BigEndian.AppendUint64(replaces.Result, uint64(value))
		}
		if _, err := pg.ReadGuards(guarded); !errors.Is(err, want) {
			t.Errorf("ReadGuards with jit %d = %v, want %v", jit, err, want)
		}
	}
}
