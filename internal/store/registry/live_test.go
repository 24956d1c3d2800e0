package registry

import (
	"context"
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// table is a DB with rate_limit_nodes: as many rows of other proxies as other says and, if own is set, the
// row of this process. If down is set, statements fail.
type table struct {
	other int64
	own   bool
	down  bool
}

func (*table) Exec(context.Context, time.Duration, string) error { return nil }
func (*table) Close()                                            {}

func (t *table) Run(_ context.Context, _ time.Duration, statements []*pgdb.Statement) error {
	if t.down {
		return pgdb.ErrConnectionLost
	}
	for _, s := range statements {
		s.Rows = 1
		switch {
		case strings.HasPrefix(s.SQL, "SELECT count(*)"):
			n := t.other
			if t.own {
				n++
			}
			s.Result = binary.BigEndian.AppendUint32(s.Result, 8)
			s.Result = binary.BigEndian.AppendUint64(s.Result, uint64(n))
		case s.SQL == rowSQL:
			t.own = true
		case s.SQL == cannotSQL:
			s.Result = binary.BigEndian.AppendUint32(s.Result, 0)
		}
	}
	return nil
}

// When a crash has emptied the registry, a proxy uses the smaller number of proxies only 10 s later, because
// the others need this time to write their rows again. A poll that fails meanwhile changes nothing.
func TestProxiesCountTenSecondsAfterCrash(t *testing.T) {
	for name, failing := range map[string]bool{"a poll fails": true, "no poll fails": false} {
		t.Run(name, func(t *testing.T) {
			db, node := &table{other: 2}, &Node{Name: "n", Epoch: 1}
			now := time.Now()
			poll := func(seconds int) (proxies int64) {
				for range seconds {
					now = now.Add(time.Second)
					proxies, _ = node.Poll(t.Context(), db, false, now)
				}
				return proxies
			}
			if n := poll(20); n != 3 {
				t.Fatalf("before the crash, %d proxies count, want 3", n)
			}
			*db = table{down: failing}
			if failing {
				poll(1)
				db.down = false
			}
			for second := range 9 {
				if n := poll(1); n != 3 {
					t.Fatalf("%d s after the crash, %d proxies count, want 3", second+1, n)
				}
			}
			if n := poll(10); n != 1 {
				t.Errorf("after 10 s of silence, %d proxies count, want 1", n)
			}
		})
	}
}
