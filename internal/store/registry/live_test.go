package registry

import (
	"context"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// table is a DB with rate_limit_nodes: as many rows of other proxies as other says and, if own is set, the
// row of this process. If down is set, statements fail.
type table struct {
	other  int64
	own    bool
	down   bool
	writes int // of the row
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
		case s.SQL == liveSQL:
			n := t.other
			if t.own {
				n++
			}
			s.Result = binary.BigEndian.AppendUint32(s.Result, 8)
			s.Result = binary.BigEndian.AppendUint64(s.Result, uint64(n))
		case s.SQL == rowSQL:
			t.own = true
			t.writes++
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
					proxies, _ = node.Poll(t.Context(), db, now)
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

// A proxy writes its row every three seconds, and within a second if it has applied a change of the policy.
// However often the policy changes, it writes once a second.
func TestRowFollowsAppliedChanges(t *testing.T) {
	db, node := &table{}, &Node{Name: "n", Epoch: 1}
	now := time.Now()
	writes := func(polls int) int {
		before := db.writes
		for range polls {
			now = now.Add(250 * time.Millisecond)
			if _, err := node.Poll(t.Context(), db, now); err != nil {
				t.Fatal(err)
			}
		}
		return db.writes - before
	}
	expect := func(what string, got, want int) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %d writes, want %d", what, got, want)
		}
	}
	expect("at first", writes(1), 1)
	expect("in 12 s", writes(48), 4)
	node.SetApplied("1:1:", "1", nil)
	expect("0.25 s after the last heartbeat, with a change", writes(1), 0)
	expect("1 s after it", writes(3), 1)
	expect("1.75 s later", writes(7), 0)
	node.SetApplied("2:2:", "1", nil)
	expect("at once with a change", writes(1), 1)
	changes := 0
	for i := range 40 {
		node.SetApplied(fmt.Sprintf("%d:%[1]d:", 3+i), "1", nil)
		changes += writes(1)
	}
	expect("in 10 s with 40 changes", changes, 10)
}
