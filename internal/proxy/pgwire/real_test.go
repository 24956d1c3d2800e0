package pgwire

import (
	"encoding/binary"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// number runs a statement that has one row of one bigint.
func number(t testing.TB, p *Pool, sql string, args ...any) int64 {
	t.Helper()
	st := stmt(sql, args...)
	run(t, p, st)
	if len(st.Result) != 12 {
		t.Fatalf("%s: %q", sql, st.Result)
	}
	return int64(binary.BigEndian.Uint64(st.Result[4:]))
}

// TestSessionsTerminated: the server ends idle connections, and the next call uses
// them before their end may be there.
func TestSessionsTerminated(t *testing.T) {
	dsn := cluster.Open(t)
	p, killer := open(t, dsn, Options{}), open(t, dsn, Options{})
	for i := 0; i < 50; i++ {
		run(t, p, stmt("SELECT 1"), stmt("SELECT 2"))
		run(t, killer, stmt("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()"))
		run(t, p, stmt("SELECT 1"), stmt("SELECT 2"))
	}
}
