// Package slots holds the slots of requests in flight.
//
// Hits on limits InFlight hold slots, see algorithm.InFlight. A slot begins with the take of its hit, in the
// statement or transaction of the request. It ends with ratelimit.Slot.Release: the slot is then released by
// the next batch, before its requests, see batch.Background. A release is sent again until the server has
// answered: a slot is a number, so twice is once.
//
// The name of the process in the numbers, here the session, is a row that the store renews. Its life for
// others is ten seconds. The store itself believes in it for less (sessionTime), by two clocks: one of them
// goes on while the process is stopped, the other one also while its machine is. After that, or if the row
// has run out, the store takes a new session and enters the requests that run once more, as if they came now.
// Those that do not fit have lost their slots. While the database does not answer, no other process takes
// slots either, and nothing is lost.
package slots

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

const (
	// renewInterval is the time between two renewals, and tickInterval that between two looks at
	// the clocks.
	renewInterval = 3 * time.Second
	tickInterval  = 250 * time.Millisecond
	// sessionTime is how long after the start of a renewal the store uses its session.
	sessionTime = 8 * time.Second
	// renewTimeout is for one renewal.
	renewTimeout = time.Second
	// leaveAgain is the time between two attempts to give a slot back of which it is not known whether it was
	// taken: the take may come after the first one, as on a server that hung. lateEnter is for how long,
	// while the database answers.
	leaveAgain = time.Second
	lateEnter  = 10 * time.Second
	// mostUnsure bounds such slots. Beyond it the session ends, and they end with it.
	mostUnsure = 10000
)

// sessionSQL begins a session and ends the one before. Names do not come back: the row of a session stays for
// a day. Those that a clock wrote that was an hour ahead or more are left out. renewSQL renews a session that
// others have not seen run out.
const (
	sessionSQL = `WITH ended AS (UPDATE {table} SET seen = '-infinity' WHERE process = $1::bigint), swept AS (
	DELETE FROM {table} WHERE seen < clock_timestamp() - interval '1 day' AND process < extract(epoch FROM clock_timestamp())::bigint - 946684800 - 86400)
INSERT INTO {table} (process, seen)
SELECT greatest(extract(epoch FROM clock_timestamp())::bigint - 946684800,
	coalesce(max(process) FILTER (WHERE process < extract(epoch FROM clock_timestamp())::bigint - 946684800 + 3600) + 1, 0)), clock_timestamp() FROM {table}
ON CONFLICT (process) DO NOTHING RETURNING process`
	renewSQL = `UPDATE {table} SET seen = clock_timestamp() WHERE process = $1::bigint AND seen BETWEEN clock_timestamp() - interval '8 s' AND clock_timestamp() + interval '8 s' RETURNING process`
	endSQL   = `UPDATE {table} SET seen = '-infinity' WHERE process = $1::bigint`
)

// Database is what slots need of the database.
type Database struct {
	DB      pgdb.DB
	Closing context.Context // ends when the store is closed
	Health  *health.Health
	Report  func(error) // gets failures that no caller sees

	// Run runs statements, each attempt within the timeout. It reports whether a statement has failed.
	Run func(ctx context.Context, timeout time.Duration, statements []*pgdb.Statement) (bool, error)

	// Table has the sessions. Guard is a statement that runs before those on it; "" is none.
	Table, Guard string
}

// Slots are the slots of a store.
type Slots struct {
	database   *Database
	background *batch.Background // for releases
	queue      *batch.Queue      // for the takes of requests that are entered again
	left       func(granted int64, err error)

	used int32 // 1 after the first session; atomic

	starting sync.Mutex // held while a session begins

	mu      sync.Mutex // guards all that follows
	session int64      // 0 before the first
	renewed time.Time  // when the last renewal was sent
	number  int64      // of the last slot
	held    map[*heldSlots]bool
	rows    map[lease.RowID]int64 // how many slots of each row are in held
	unsure  []unsureSlots         // to be given back again
	ticking bool
}

// Range is numbers of slots in a row that follow each other.
type Range struct {
	Limit    *ratelimit.Limit
	Row      lease.RowID
	First, N int64
}

// unsureSlots are slots of which it is not known whether they were taken.
type unsureSlots struct {
	Range
	due   time.Time // when they are given back again
	until time.Time // and when for the last time
}

// heldSlots are those of one hit that was admitted.
type heldSlots struct {
	Range
	slot  *ratelimit.Slot
	next  *ratelimit.Slot // in the next session; nil in the session of the slots
	ended bool            // the hit has released them
}

// New returns the slots of a store, which has none yet.
func New(d *Database, b *batch.Background, q *batch.Queue) *Slots {
	f := &Slots{database: d, background: b, queue: q, held: map[*heldSlots]bool{},
		rows: map[lease.RowID]int64{}}
	f.left = func(_ int64, err error) { f.end(err) }
	return f
}

// statements returns what runs one of the statements above.
func (f *Slots) statements(s *pgdb.Statement) []*pgdb.Statement {
	s.SQL = strings.ReplaceAll(s.SQL, "{table}", f.database.Table)
	if f.database.Guard == "" {
		return []*pgdb.Statement{s}
	}
	return []*pgdb.Statement{{SQL: f.database.Guard, Joined: true, Unnamed: true}, s}
}

// current returns the session, and whether the store may use it.
func (f *Slots) current() (int64, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.session, f.fresh(time.Now())
}

// fresh reports whether the store may use its session. The caller holds mu.
func (f *Slots) fresh(now time.Time) bool {
	return f.session != 0 && now.Sub(f.renewed) < sessionTime &&
		now.Round(0).Sub(f.renewed.Round(0)) < sessionTime
}

// Begin returns a session that is fresh. It begins one if there is none. The timeout is for its statement.
func (f *Slots) Begin(ctx context.Context, timeout time.Duration) (int64, error) {
	session, ok := f.current()
	if ok {
		return session, nil
	}
	f.starting.Lock()
	defer f.starting.Unlock()
	before, begun := f.current()
	if begun {
		return before, nil
	}
	sent := time.Now()
	for {
		begins := &pgdb.Statement{SQL: sessionSQL, Args: []any{before}, Unnamed: true}
		if _, err := f.database.Run(ctx, timeout, f.statements(begins)); err != nil {
			return 0, err
		}
		if begins.Err != nil {
			return 0, fmt.Errorf("slots of requests in flight: %w", begins.Err)
		}
		if names := pg.Bigints(begins.Result); len(names) == 1 {
			session = names[0]
			break
		}
	}
	atomic.StoreInt32(&f.used, 1)
	f.mu.Lock()
	f.session = session
	f.renewed = sent
	var lost []*heldSlots
	for h := range f.held {
		lost = append(lost, h)
	}
	f.held = map[*heldSlots]bool{}
	f.rows = map[lease.RowID]int64{}
	f.unsure = nil
	tick := !f.ticking
	f.ticking = true
	f.mu.Unlock()
	if len(lost) > 0 {
		go f.enterAgain(lost)
	}
	if tick {
		go f.tick()
	}
	return session, nil
}

// Numbers returns the first of so many numbers of slots of a session.
func (f *Slots) Numbers(session, n int64) int64 {
	const most = int64(1)<<32 - 1
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.number+n > most {
		f.number = 0
	}
	first := session<<32 | (f.number + 1)
	f.number += n
	return first
}

// tick renews the session until the store is closed.
func (f *Slots) tick() {
	closing := f.database.Closing
	for batch.Sleep(closing, tickInterval); closing.Err() == nil; batch.Sleep(closing, tickInterval) {
		f.database.Report(batch.PanicError(func() { f.renew(closing, time.Now()) }))
	}
}

// renew renews the session if that is due, or begins another one if it cannot be used any more.
func (f *Slots) renew(closing context.Context, now time.Time) {
	f.mu.Lock()
	session, fresh, age := f.session, f.fresh(now), now.Sub(f.renewed)
	down := f.database.Health.Unavailable() != nil
	again := f.againLocked(now, down)
	f.mu.Unlock()
	f.Leave(again)
	if fresh && age < renewInterval || down {
		return
	}
	ctx, cancel := context.WithTimeout(closing, renewTimeout)
	defer cancel()
	if fresh {
		renews := &pgdb.Statement{SQL: renewSQL, Args: []any{session}, Unnamed: true}
		if err := f.database.DB.Run(ctx, f.statements(renews)); err != nil || renews.Err != nil {
			return // requests notice that the database does not answer
		}
		f.mu.Lock()
		replaced := f.session != session // meanwhile, by a batch
		switch {
		case replaced:
		case renews.Rows == 1:
			f.renewed = now
		default:
			f.renewed = time.Time{} // the row has run out
		}
		f.mu.Unlock()
		if replaced || renews.Rows == 1 {
			return
		}
	}
	_, _ = f.Begin(ctx, renewTimeout) // the next tick tries again
}

// enterAgain enters requests that run into the session that has begun, until there is a decision on each.
func (f *Slots) enterAgain(lost []*heldSlots) {
	for len(lost) > 0 && f.database.Closing.Err() == nil {
		if lost = f.tryToEnter(lost); len(lost) > 0 {
			batch.Sleep(f.database.Closing, renewInterval)
		}
	}
}

// tryToEnter enters requests, and returns those without a decision. Those that do not fit have lost their
// slots.
func (f *Slots) tryToEnter(lost []*heldSlots) []*heldSlots {
	calls := make([]*batch.Call, len(lost))
	for i, h := range lost {
		next := nextSlot(h)
		f.mu.Lock()
		ended := h.ended
		h.next = next
		f.mu.Unlock()
		if ended {
			continue
		}
		calls[i] = batch.NewCall()
		calls[i].Prepare([]ratelimit.Hit{{Limit: h.Limit, Key: h.Row.Key, Cost: h.N, Slot: next}}, false)
		batch.Send(f.queue, calls[i], time.Now())
	}
	var undecided []*heldSlots
	for i, c := range calls {
		if c == nil {
			continue
		}
		batch.Wait(c)
		if c.Err != nil {
			undecided = append(undecided, lost[i])
		} else if !c.Decisions[0].Allowed {
			lost[i].slot.Lose()
		}
	}
	return undecided
}

// nextSlot is what a request holds in the next session.
func nextSlot(h *heldSlots) *ratelimit.Slot {
	return &ratelimit.Slot{Lost: func() { h.slot.Lose() }}
}

// Hold gives a hit the slots that it was granted.
func (f *Slots) Hold(s Range, h *ratelimit.Hit) {
	held := &heldSlots{Range: s, slot: h.Slot}
	f.mu.Lock()
	current := s.First>>32 == f.session
	if current {
		f.held[held] = true
		f.rows[s.Row] += s.N
	}
	f.mu.Unlock()
	h.Slot.Hold(func() { f.release(held) })
	if !current {
		go f.enterAgain([]*heldSlots{held})
	}
}

// release gives slots back that a hit has held.
func (f *Slots) release(h *heldSlots) {
	f.mu.Lock()
	next := h.next
	h.ended = true
	if f.held[h] {
		delete(f.held, h)
		if n := f.rows[h.Row] - h.N; n > 0 {
			f.rows[h.Row] = n
		} else {
			delete(f.rows, h.Row)
		}
	}
	f.mu.Unlock()
	if next != nil {
		next.Release()
		return
	}
	f.Leave([]Range{h.Range})
}

// Count is how many slots the requests of this store hold.
func (f *Slots) Count() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := int64(0)
	for _, held := range f.rows {
		n += held
	}
	return n
}

// CountOf is how many slots of a row they hold.
func (f *Slots) CountOf(row lease.RowID) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rows[row]
}

// Used reports whether there has been a session.
func (f *Slots) Used() bool { return atomic.LoadInt32(&f.used) == 1 }
