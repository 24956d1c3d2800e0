package registry

import (
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// table answers for rate_limit_nodes, which has the rows of others beside that of the process.
type table struct {
	others int64
	own    bool
	down   bool
}

func (*table) Exec(context.Context, string) error { return nil }
func (*table) Close()                             {}

func (d *table) Run(_ context.Context, statements []*pgdb.Statement) error {
	if d.down {
		return errors.New("connection lost")
	}
	for _, s := range statements {
		s.Rows = 1
		switch {
		case strings.HasPrefix(s.SQL, "SELECT count(*)"):
			n := d.others
			if d.own {
				n++
			}
			s.Result = binary.BigEndian.AppendUint32(s.Result, 8)
			s.Result = binary.BigEndian.AppendUint64(s.Result, uint64(n))
		case s.SQL == rowSQL:
			d.own = true
		case s.SQL == cannotSQL:
			s.Result = binary.BigEndian.AppendUint32(s.Result, 0)
		}
	}
	return nil
}

// counted is a Store that keeps the number of proxies.
type counted struct{ n int64 }

func (*counted) Prepare()             {}
func (*counted) Ready() bool          { return true }
func (*counted) Unavailable() error   { return nil }
func (s *counted) SetProxies(n int64) { s.n = n }
func (*counted) Tick()                {}
func (*counted) Local() Local         { return Local{} }

// A crash empties the registry. Whether a poll fails meanwhile or not, fewer proxies count only 10 s later.
func TestFewerProxiesCountLongAfterACrash(t *testing.T) {
	for name, polled := range map[string]bool{"a poll fails": true, "no poll fails": false} {
		t.Run(name, func(t *testing.T) {
			db, store := &table{others: 2}, &counted{}
			r := New(db, store, &Node{Name: "n", Epoch: 1}, engine.Options{DisableMigration: true})
			now := time.Now()
			r.checkSettingsAt = now.Add(time.Hour)
			poll := func(seconds int) {
				for range seconds {
					now = now.Add(time.Second)
					_ = r.poll(now)
				}
			}
			poll(20)
			if store.n != 3 {
				t.Fatalf("%d proxies count, not 3", store.n)
			}
			*db = table{down: polled}
			if polled {
				poll(1)
				db.down = false
			}
			for second := range 9 {
				if poll(1); store.n != 3 {
					t.Fatalf("%d proxies count %d s after the crash, not 3", store.n, second+1)
				}
			}
			if poll(10); store.n != 1 {
				t.Errorf("%d proxies count when the others have been silent for 10 s, not 1", store.n)
			}
		})
	}
}
