// Package slots holds the slots of requests in flight.
//
// Hits on limits InFlight hold slots, see algorithm.InFlight. A slot begins with the take of its hit, in the
// statement or transaction of the request. It ends with ratelimit.Slot.Release: the next batch then releases
// the slot before its requests, see batch.Background. A release is repeated until the server has answered. A
// slot is a number, so a repeated release has no effect.
//
// The session is the name of the process in the numbers: a row that the store renews. For other processes it
// expires ten seconds after its last renewal. The store uses it for a shorter time (sessionTime), by two
// clocks: one of them continues while the process is stopped, the other one even while its machine is. After
// that, or if the row has expired, the store begins a new session and takes slots again for the requests in
// flight, as if they came now. Those that do not fit have lost their slots. While the database does not
// answer, no other process takes slots either, and nothing is lost.
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
	// renewInterval is the time between two renewals, and tickInterval the time between two checks of
	// the clocks.
	renewInterval = 3 * time.Second
	tickInterval  = 250 * time.Millisecond
	// sessionTime is the time from the start of a renewal during which the store uses its session.
	sessionTime = 8 * time.Second
	// renewTimeout bounds one renewal.
	renewTimeout = time.Second
	// leaveAgain is the time between two releases of a slot that may have been taken: on a server that hung,
	// the take may come after the first release. They end after lateEnter, in which the database answers.
	leaveAgain = time.Second
	lateEnter  = 10 * time.Second
	// mostUnsure bounds such slots. Beyond it the session ends, and they end with it.
	mostUnsure = 10000
)

// sessionSQL begins a session and ends the one before. A name is used once: the row of a session stays for a
// day. Names from a clock that was an hour or more ahead are left out. renewSQL renews a session that has not
// expired for others.
const (
	sessionSQL = `WITH ended AS (UPDATE {table} SET seen = '-infinity' WHERE process = $1::bigint), swept AS (
	DELETE FROM {table} WHERE seen < clock_timestamp() - interval '1 day'
		AND process < extract(epoch FROM clock_timestamp())::bigint - 946684800 - 86400)
INSERT INTO {table} (process, seen)
SELECT greatest(extract(epoch FROM clock_timestamp())::bigint - 946684800,
	coalesce(max(process) FILTER (WHERE process < extract(epoch FROM clock_timestamp())::bigint - 946684800
		+ 3600) + 1, 0)), clock_timestamp() FROM {table}
ON CONFLICT (process) DO NOTHING RETURNING process`
	renewSQL = `UPDATE {table} SET seen = clock_timestamp() WHERE process = $1::bigint
	AND seen BETWEEN clock_timestamp() - interval '8 s' AND clock_timestamp() + interval '8 s'
	RETURNING process`
	endSQL = `UPDATE {table} SET seen = '-infinity' WHERE process = $1::bigint`
)

// Database has the connections and statements of a store, for its slots.
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
	unsure  []unsureSlots         // to be released again
	ticking bool
}

// Range is a range of numbers of slots in a row.
type Range struct {
	Limit    *ratelimit.Limit
	Row      lease.RowID
	First, N int64
}

// unsureSlots are slots that may have been taken.
type unsureSlots struct {
	Range
	due   time.Time // when they are released again
	until time.Time // when they are released for the last time
}

// heldSlots are the slots of one hit that was admitted.
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

// statements returns the pipeline of one of the statements above.
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
	for health.Sleep(closing, tickInterval); closing.Err() == nil; health.Sleep(closing, tickInterval) {
		f.database.Report(batch.PanicError(func() { f.renew(closing, time.Now()) }))
	}
}

// renew renews the session if that is due, or begins another one if the session has expired.
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
			f.renewed = time.Time{} // the row has expired
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
			health.Sleep(f.database.Closing, renewInterval)
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

// nextSlot returns the slot of a request in the next session.
func nextSlot(h *heldSlots) *ratelimit.Slot {
	return &ratelimit.Slot{Lost: func() { h.slot.Lose() }}
}

// Hold transfers the slots that a hit was granted to its Slot.
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

// release releases the slots of a hit.
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

// Count returns the number of slots that the requests of this store hold.
func (f *Slots) Count() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := int64(0)
	for _, held := range f.rows {
		n += held
	}
	return n
}

// CountOf returns the number of slots of a row that they hold.
func (f *Slots) CountOf(row lease.RowID) int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.rows[row]
}

// Used reports whether there has been a session.
func (f *Slots) Used() bool { return atomic.LoadInt32(&f.used) == 1 }
