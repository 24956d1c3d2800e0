// Package ledger settles requests on limits that reserve, exactly once. A request holds units of each of its
// limits while it runs (see algorithm/reserve.go). After its response, its Bill is settled in one
// transaction, which adds a row to the table rate_limit_ledger and, only if that row is new, charges the real
// cost to the counters and ends the holds. So a settlement is repeated until it is answered.
//
// A row of a counter has a sum of held units for each name. The sums change by differences, which must not
// be repeated. So whatever leaves a sum uncertain, such as a reservation without an answer, replaces the
// name: a new one begins, and holds again what running requests hold. Only then does the old one end, so
// that nobody else takes the units meanwhile, and its sums no longer count. What a killed process held is
// free when its name expires.
//
// One goroutine sends settlements, releases and holds, and renews the name. It holds nothing again while
// the outcome of a settlement is unknown, because the settlement may have ended a hold.
//
// The files, from the top down: ledger.go, send.go.
//
// Traefik interprets this package: see internal/testkit/imports/interpreted.go for the restrictions.
package ledger

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/store/process"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Ledger settles the requests of a store.
type Ledger struct {
	Options
	Name *process.Name // guarded by mu

	mu        sync.Mutex // guards the fields below
	running   bool       // the goroutine runs
	wake      func()     // ends the pause of the goroutine; nil before the first
	held      map[*ratelimit.Hold]*reservation
	waiting   []*item // in the order of arrival
	unsettled int     // the number of settlements without an end
	closed    bool    // Close has counted those that are left
	uncertain bool    // the name's sums may differ from what requests hold
	beganAt   time.Time
	former    []int64       // earlier names that go on until the rows hold for the present one
	reserving map[int64]int // the batches that reserve for each name

	unknown []*item // sent without an answer; only the goroutine uses it
}

// Options connect a Ledger to its store.
type Options struct {
	process.Options
	Rows *lease.Set // the remembered rows

	// Write returns the statements that settle charges, after those that add bills to the ledger.
	Write func(charges []*batch.Charge, name int64, sync bool, lockWait time.Duration) []*pgdb.Statement

	// Upkeep makes the partitions of the ledger, and that of a day, in days since 1970. Nil makes none.
	Upkeep func(day int64) error
	// Notify is called with the notices of settlements that were answered. Nil makes none.
	Notify func(n *batch.Notice)
	// Settled is called with the outcome of n settlements: nil, or the reason why they are lost.
	Settled func(n int64, err error)
	// Now is Options.Now in Unix microseconds; 0 is the clock of the server.
	Now func() int64
}

// reservation is the reservation of a hit.
type reservation struct {
	limit  *ratelimit.Limit
	row    lease.RowID
	units  int64
	name   int64 // that for which the row holds the units; 0 if it does not yet
	ending bool  // a settlement or a release waits
}

// maxWaiting bounds the settlements that wait. Further ones are lost.
const maxWaiting = 20000

var errLost = errors.New("ratelimit: settlements are lost: too many wait, or the database does not answer")

// New returns a Ledger without a name.
func New(o Options) *Ledger {
	l := &Ledger{Options: o, held: map[*ratelimit.Hold]*reservation{}, reserving: map[int64]int{}}
	l.Name = process.New(&l.mu, o.Options, true, func(previous int64) {
		l.beganAt = time.Now()
		if previous != 0 {
			l.former = append(l.former, previous)
		}
	})
	return l
}

// UseName returns a usable name, which does not end before Leave. It takes a new one if necessary, with
// timeout for each attempt.
func (l *Ledger) UseName(ctx context.Context, timeout time.Duration) (int64, error) {
	for {
		name, err := l.Name.Get(ctx, timeout)
		if err != nil {
			return 0, err
		}
		l.mu.Lock()
		present := name == l.Name.Last()
		if present {
			l.reserving[name]++
		}
		l.mu.Unlock()
		if present {
			return name, nil
		}
	}
}

// Leave lets names end: Acquire has recorded what a batch has reserved for them.
func (l *Ledger) Leave(names []int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range names {
		if l.reserving[name]--; l.reserving[name] == 0 {
			delete(l.reserving, name)
		}
	}
}

// Acquire records that a hit holds its cost in its row for a name, or not in the database yet if that is 0.
func (l *Ledger) Acquire(name int64, h *ratelimit.Hit, row lease.RowID) {
	hold := h.Hold
	l.mu.Lock()
	known := l.held[hold]
	if known != nil {
		known.name = name
	} else {
		row.Key = strings.Clone(row.Key) // it may be a part of a long request
		l.held[hold] = &reservation{limit: h.Limit, row: row, units: h.Cost, name: name}
	}
	if !l.running {
		l.start()
	}
	l.mu.Unlock()
	if known == nil {
		hold.Acquire(func() { l.release(hold) })
	}
}

// Held returns the units that a hit holds.
func (l *Ledger) Held(hold *ratelimit.Hold) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.held[hold]; r != nil {
		return r.units
	}
	return 0
}

// MarkUncertain records that a reservation has no answer: the row may hold its units, so the name soon ends.
func (l *Ledger) MarkUncertain() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.uncertain = true
	l.start()
}

// release ends the hold of a hit that no settlement ends.
func (l *Ledger) release(hold *ratelimit.Hold) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.held[hold]; r != nil && !r.ending {
		r.ending = true
		l.waiting = append(l.waiting, &item{Bill: batch.Bill{Charges: []batch.Charge{
			{Limit: r.limit, Key: r.row.Key, Hold: hold}}}})
		l.start()
	}
}

// Settle settles requests in the background, and owns their bills from then on.
func (l *Ledger) Settle(bills ...*batch.Bill) {
	lost := 0
	var others []*ratelimit.Hold // with units that hits on several shards, or in another store, hold
	l.mu.Lock()
	for _, s := range bills {
		loses := l.closed || l.unsettled >= maxWaiting
		for i := range s.Charges {
			r := l.held[s.Charges[i].Hold]
			switch {
			case r == nil:
				if hold := s.Charges[i].Hold; hold != nil {
					others = append(others, hold)
				}
			case r.ending: // its release waits
				s.Charges[i].Hold = nil
			case loses:
				delete(l.held, s.Charges[i].Hold)
				l.uncertain = true
			default:
				r.ending = true
			}
		}
		if loses {
			lost++
		} else {
			l.unsettled++
			l.waiting = append(l.waiting, &item{Bill: *s})
		}
	}
	if lost < len(bills) {
		l.start()
	}
	l.mu.Unlock()
	for _, hold := range others {
		hold.Release()
	}
	l.Lose(lost)
}

// Lose counts and reports n settlements that are lost.
func (l *Ledger) Lose(n int) {
	if n > 0 {
		l.Report(errLost)
		l.Settled(int64(n), errLost)
	}
}

// start starts the goroutine, or ends its pause. The caller holds the mutex.
func (l *Ledger) start() {
	if !l.running {
		l.running = true
		go l.run()
	}
	if l.wake != nil {
		l.wake()
	}
}

// Unsettled returns the number of settlements that were not answered yet.
func (l *Ledger) Unsettled() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.unsettled
}

// flushTimeout bounds Flush.
const flushTimeout = 5 * time.Second

// Flush waits until the settlements are answered, unless the database is unavailable or takes too long.
func (l *Ledger) Flush() {
	for until := time.Now().Add(flushTimeout); l.Unsettled() > 0 && l.Health.Unavailable() == nil &&
		time.Now().Before(until); {
		time.Sleep(time.Millisecond)
	}
}

// Close calls Flush, and ends the name. The settlements that are left are lost.
func (l *Ledger) Close() {
	l.Flush()
	l.mu.Lock()
	l.closed = true
	left := l.unsettled
	names := append([]int64{l.Name.Last()}, l.former...)
	l.mu.Unlock()
	l.Lose(left)
	for _, one := range names {
		l.Name.EndOne(one)
	}
}
