package postgres_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// holdingDB holds the answer to the next take back, once it is told to.
type holdingDB struct {
	postgres.DB
	mu      sync.Mutex
	hold    bool
	held    chan struct{} // closed when an answer is held
	release chan struct{}
}

func (d *holdingDB) Run(ctx context.Context, statements []*postgres.Statement) error {
	err := d.DB.Run(ctx, statements)
	d.mu.Lock()
	hold := false
	for _, s := range statements {
		hold = hold || d.hold && strings.Contains(s.SQL, "ON CONFLICT")
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
			eventually(t, "the row to say what was admitted", func() bool { return left(t, other, h) == 30000-passed })
		})
	}
}
