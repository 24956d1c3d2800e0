package engine_test

import (
	"context"
	"encoding/binary"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/core/sqlstate"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/store/registry"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// timelineDB changes what the server says about its history.
type timelineDB struct {
	pgdb.DB
	timeline int64 // is added to the first digit of the system identifier; atomic
	back     int64 // is subtracted from the position; atomic
	later    byte  // is added to the last digit of the timeline
	down     int32 // 1 if the server does not answer; atomic
	asked    int64 // atomic
}

func (d *timelineDB) Run(ctx context.Context, statements []*pgdb.Statement) error {
	if atomic.LoadInt32(&d.down) == 1 {
		return errors.New("connection refused")
	}
	err := d.DB.Run(ctx, statements)
	for _, s := range statements {
		if strings.HasPrefix(s.SQL, "SELECT system_identifier") && s.Rows == 1 {
			atomic.AddInt64(&d.asked, 1)
			s.Result[4] += byte(atomic.LoadInt64(&d.timeline))
			s.Result[len(s.Result)-13] += d.later
			position := s.Result[len(s.Result)-8:]
			binary.BigEndian.PutUint64(position, binary.BigEndian.Uint64(position)-uint64(atomic.LoadInt64(&d.back)))
		}
	}
	return err
}

// The server was replaced by a standby that lacks the last charges, or a backup of its files was put
// back. The units of leases were charged on rows that do not say so: no unit is used or given back.
func TestUnitsOfAnotherTimelineAreNotUsed(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(d *timelineDB){
		"another timeline":       func(d *timelineDB) { atomic.StoreInt64(&d.timeline, 1) },
		"files of a time before": func(d *timelineDB) { atomic.StoreInt64(&d.back, 1<<40) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			d := &timelineDB{DB: s.db("")}
			store := s.proxy(d, lasting, registry.Node{})
			store.Prepare()
			h := leasedHit(ratelimit.SlidingWindow, true)
			passed := hammerLeased(t, store, 10, h)
			await.Within(t, longTime, "the first look at the timeline", func() bool { return atomic.LoadInt64(&d.asked) > 1 })
			if awaitUnits(t, s, store, passed, h) == 0 {
				t.Fatal("no units are held")
			}
			s.exec("UPDATE rate_limit_durable SET count = 5")
			lose(d)
			await.Within(t, longTime, "the end of the leases", func() bool { return store.Stats().LeasedUnits == 0 })
			store.Close()
			if n := used(t, s, h); n != 5 {
				t.Errorf("the row has %d units after the leases have ended, want 5: it was not charged for theirs", n)
			}
			s.nothingReported()
		})
	}
}

// partDB is a database with one part, or the server of the part: at most one host has the part, and is reached.
type partDB struct {
	timelineDB
	site  *site
	host  string        // "" is that of the database
	part  *atomic.Value // the host of the part
	looks *int64        // at the timelines of the hosts; atomic
}

func (d *partDB) At(host string, _ int) (pgdb.DB, error) {
	server := &partDB{site: d.site, host: host, part: d.part, looks: d.looks}
	server.DB = d.site.db("")
	if host == "standby" {
		server.later = 1
	}
	return server, nil
}

func (d *partDB) Run(ctx context.Context, statements []*pgdb.Statement) error {
	first := statements[0]
	host := d.part.Load().(string)
	if d.host != "" && d.host != host {
		for _, s := range statements {
			s.Err = sqlstate.ErrNotSent
		}
		return errors.New("no route to host")
	}
	switch first.SQL {
	case schema.PartsReady:
		addRow(first, [][]byte{int8(1)})
	case schema.PartNames:
		addRow(first, [][]byte{[]byte("part")})
	case schema.PartRoutes:
		for _, table := range []string{"rate_limit_ephemeral", "rate_limit_durable", "rate_limit_processes"} {
			addRow(first, [][]byte{int4(1), []byte(table), []byte(table), []byte("pg_backend_pid()"), []byte(host), int4(5432)})
		}
	default:
		err := d.timelineDB.Run(ctx, statements)
		if d.host != "" && strings.HasPrefix(first.SQL, "SELECT system_identifier") {
			atomic.AddInt64(d.looks, 1)
		}
		return err
	}
	return nil
}

// The standby of a part's server takes over, at an address of its own.
func TestUnitsOfAPartWhoseStandbyTookOverAreNotUsed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.exec(engine.TableSQL)
	d := &partDB{site: s, part: &atomic.Value{}, looks: new(int64)}
	d.DB = s.db("")
	d.part.Store("primary")
	store := s.proxy(d, lasting, registry.Node{})
	store.Prepare()
	hammerLeased(t, store, 10, leasedHit(ratelimit.SlidingWindow, true))
	await.Within(t, longTime, "a look at the timeline", func() bool { return atomic.LoadInt64(d.looks) > 0 })
	if store.Stats().LeasedUnits == 0 {
		t.Fatal("no units are held")
	}
	d.part.Store("standby")
	takeOne(t, store, hitOn("other", 10, true)) // finds the part
	await.Within(t, longTime, "the end of the leases", func() bool { return store.Stats().LeasedUnits == 0 })
}

// A store that is not registered looks at the timeline after an outage only, and compares it with that of the beginning.
func TestUnitsOfAnotherTimelineAreNotUsedAfterTheFirstOutage(t *testing.T) {
	s := newSite(t)
	d := &timelineDB{DB: s.db("")}
	store := s.storeOn(d, lasting)
	hammerLeased(t, store, 10, leasedHit(ratelimit.SlidingWindow, true))
	if store.Stats().LeasedUnits == 0 {
		t.Fatal("no units are held")
	}
	atomic.StoreInt64(&d.timeline, 1)
	atomic.StoreInt32(&d.down, 1)
	h := hitOn("other", 10, true)
	if err := store.Take(context.Background(), longTime, []ratelimit.Hit{h}, make([]ratelimit.Decision, 1)); err == nil {
		t.Error("a decision without a server")
	}
	atomic.StoreInt32(&d.down, 0)
	await.Within(t, longTime, "the end of the leases", func() bool { return store.Stats().LeasedUnits == 0 })
}
