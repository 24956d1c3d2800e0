package postgres_test

import (
	"context"
	"encoding/binary"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// timelineDB changes what the server says about its history.
type timelineDB struct {
	postgres.DB
	timeline int64 // is added to the first digit of the system identifier; atomic
	back     int64 // is subtracted from the position; atomic
	asked    int64 // atomic
}

func (d *timelineDB) Run(ctx context.Context, statements []*postgres.Statement) error {
	err := d.DB.Run(ctx, statements)
	for _, s := range statements {
		if strings.HasPrefix(s.SQL, "SELECT system_identifier") && s.Rows == 1 {
			atomic.AddInt64(&d.asked, 1)
			s.Result[4] += byte(atomic.LoadInt64(&d.timeline))
			position := s.Result[len(s.Result)-8:]
			binary.BigEndian.PutUint64(position, binary.BigEndian.Uint64(position)-uint64(atomic.LoadInt64(&d.back)))
		}
	}
	return err
}

// The server was replaced by a standby that lacks the last charges, or a backup of its files was put
// back. The units of leases were charged on rows that do not say so: no unit is used or given back.
func TestUnitsOfAnotherTimelineAreNotUsed(t *testing.T) {
	for name, lose := range map[string]func(d *timelineDB){
		"another timeline":       func(d *timelineDB) { atomic.StoreInt64(&d.timeline, 1) },
		"files of a time before": func(d *timelineDB) { atomic.StoreInt64(&d.back, 1<<40) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			d := &timelineDB{DB: s.db("")}
			o := lasting
			o.Node = &postgres.Node{Name: "n", Epoch: 1}
			store := s.storeOn(d, o)
			store.Prepare()
			h := leasedHit(ratelimit.SlidingWindow, true)
			hammerLeased(t, store, 10, h)
			await.Within(t, 20*time.Second, "the first look at the timeline", func() bool { return atomic.LoadInt64(&d.asked) > 1 })
			if n := store.Stats().LeasedUnits; n == 0 {
				t.Fatal("no units are held")
			}
			s.exec("UPDATE rate_limit_durable SET count = 5")
			lose(d)
			await.Within(t, 20*time.Second, "the end of the leases", func() bool { return store.Stats().LeasedUnits == 0 })
			store.Close()
			if n := used(t, s, h); n != 5 {
				t.Errorf("the row has %d units after the leases have ended, want 5: it was not charged for theirs", n)
			}
			s.nothingReported()
		})
	}
}
