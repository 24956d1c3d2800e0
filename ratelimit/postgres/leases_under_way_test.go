package postgres_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// holdingDB holds the answer to the next take back, or to another statement, once it is told to.
type holdingDB struct {
	postgres.DB
	of string // what the statement contains; "" is a take

	mu      sync.Mutex
	hold    bool
	held    chan struct{} // closed when an answer is held
	release chan struct{}
}

func (d *holdingDB) Run(ctx context.Context, statements []*postgres.Statement) error {
	err := d.DB.Run(ctx, statements)
	of := d.of
	if of == "" {
		of = "ON CONFLICT"
	}
	d.mu.Lock()
	hold := false
	for _, s := range statements {
		hold = hold || d.hold && strings.Contains(s.SQL, of)
	}
	if hold {
		d.hold = false
		close(d.held)
	}
	d.mu.Unlock()
	if hold {
		<-d.release
	}
	return err
}

// TestUnitsUnderWayGoBackToo: the only lease of a store ends while a charge for it is under way, because the
// store is closed or because of a refund. The row then says what was admitted, exactly.
func TestUnitsUnderWayGoBackToo(t *testing.T) {
	for name, end := range map[string]func(store *postgres.Store, h ratelimit.Hit) int64{
		"Close": func(store *postgres.Store, _ ratelimit.Hit) int64 { store.Close(); return 0 },
		"refund": func(store *postgres.Store, h ratelimit.Hit) int64 {
			h.Cost = -1
			takeOne(t, store, h)
			return -1
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			db := &holdingDB{DB: s.db(""), held: make(chan struct{}), release: make(chan struct{})}
			store := s.storeOn(db, postgres.Options{CleanupProbability: -1})
			h := leasedHit(ratelimit.FixedWindow, false)
			passed := hammerLeased(t, store, 100, h)
			db.mu.Lock()
			db.hold = true
			db.mu.Unlock()
			for held := false; !held; {
				takeOne(t, store, h) // slowly, so that the charge is sent by itself
				passed++
				select {
				case <-db.held:
					held = true
				case <-time.After(5 * time.Millisecond):
				}
			}
			time.AfterFunc(100*time.Millisecond, func() { close(db.release) })
			passed += end(store, h)
			<-db.release
			other := s.store(without)
			await.Within(t, 20*time.Second, "the row to say what was admitted", func() bool { return left(t, other, h) == 30000-passed })
		})
	}
}

// TestUnitsThatComeMeanwhileAreNotCountedTwice: a request asks the database, and a renewal of the lease is
// charged after it and answered before it. The row that the request saw has these units left.
func TestUnitsThatComeMeanwhileAreNotCountedTwice(t *testing.T) {
	s := newSite(t)
	db := &holdingDB{DB: s.db(""), of: "LEFT JOIN", held: make(chan struct{}), release: make(chan struct{})}
	store := s.storeOn(db, postgres.Options{CleanupProbability: -1})
	h := leasedHit(ratelimit.FixedWindow, false)
	passed := hammerLeased(t, store, 100, h)
	peek := h
	peek.Peek = true
	peek.Cost = 2000 // more than a lease has
	db.mu.Lock()
	db.hold = true
	db.mu.Unlock()
	most := h.Limit.Events - passed
	asked := make(chan ratelimit.Decision)
	go func() { asked <- takeOne(t, store, peek) }()
	<-db.held
	until := time.Now().Add(20 * time.Second)
	for before := store.Stats().LeasedUnits; store.Stats().LeasedUnits <= before; {
		before = store.Stats().LeasedUnits
		if !passes(t, store, h) || time.Now().After(until) {
			t.Fatal("the lease was not renewed")
		}
		passed++
		time.Sleep(time.Millisecond / 4)
	}
	close(db.release)
	if d := <-asked; d.Remaining > most || d.Remaining < h.Limit.Events-passed-2000 {
		t.Errorf("%d are said to be left, of %d at most", d.Remaining, most)
	}
}

// TestHeadersOfSeveralLimitsFollowTheRows, also while leases begin and are renewed: of one caller, each
// decision has one less left than that before.
func TestHeadersOfSeveralLimitsFollowTheRows(t *testing.T) {
	for _, a := range leasable {
		t.Run(a.String(), func(t *testing.T) {
			s := newSite(t)
			store := s.store(postgres.Options{CleanupProbability: -1})
			hits := []ratelimit.Hit{leasedHit(a, false), leasedHit(a, true)}
			hits[1].Limit.Events = 100000
			decisions := make([]ratelimit.Decision, 2)
			leased := 0
			until := time.Now().Add(longTime)
			for i := int64(1); i < 3000 || leased < 1000; i++ {
				if time.Now().After(until) {
					t.Fatalf("of %d requests, %d were decided by leases", i, leased)
				}
				if err := store.Take(context.Background(), longTime, hits, decisions); err != nil {
					t.Fatal(err)
				}
				for n, d := range decisions {
					// Units on their way to the process are missing.
					if most := hits[n].Limit.Events - i; d.Remaining > most || d.Remaining < most-hits[n].Limit.Events/20 {
						t.Fatalf("request %d: %d of limit %d are said to be left, and %d are", i, d.Remaining, n, most)
					}
				}
				if decisions[0].Source == ratelimit.FromLease {
					leased++
				}
			}
		})
	}
}
