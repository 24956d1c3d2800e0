package engine

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
	// renewInterval is the time between two renewals of the session. tickInterval is the time between two
	// checks for a due renewal.
	renewInterval = 3 * time.Second
	tickInterval  = 250 * time.Millisecond
	// sessionTime is the time for which a session is used after its last renewal was sent.
	sessionTime = 8 * time.Second
	// renewTimeout bounds one renewal.
	renewTimeout = time.Second
	// If a take got no answer, the server may still run it after the first release. So the store releases an
	// uncertain slot again after each releaseInterval, until the database has answered for lateTakeTime
	// without a break: then no late take can follow.
	releaseInterval = time.Second
	lateTakeTime    = 10 * time.Second
	// maxUncertain bounds the uncertain slots. Beyond it the session ends, and all slots with it.
	maxUncertain = 10000
)

// sessionSQL starts a session, ends the previous one ($1), and returns the name of the new session. A new
// name is above all names in the table, and a row stays in the table for a day after its session, so no name
// is used twice. A new name ignores names that are an hour or more ahead, which a wrong clock made, because
// such a name would push all later names ahead. renewSQL renews a session that was last renewed at most 8
// seconds ago (sessionTime). Other processes wait for 10 seconds (algorithm/in_flight.go), so a renewal never
// revives a session after they have freed its slots.
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

// slots manages the slots of requests in flight on limits InFlight (see algorithm/in_flight.go). Each slot
// ends with its request, or soon after its process. The caller keeps a ratelimit.Slot for its request, and
// this type keeps a heldSlots for each admitted hit.
//
// A slot is a number. The statement or transaction of a request takes the slots of its hits. After
// ratelimit.Slot.Release, the next batch releases the slots before it decides its requests (see Release). A
// release is repeated until the server has answered. A second release of a slot has no effect, because a
// session uses a number again only after about 2^32 others.
//
// The high bits of the number name a session, which is a row that this process renews. SQL calls a session a
// process: the row is in the table rate_limit_processes. For other processes, the session expires ten seconds
// after its last renewal. This process stops using the session earlier, when sessionTime has passed on either
// of two clocks, because the monotonic clock may stand still while the machine is suspended, and the wall
// clock may be set back. The next batch or tick then starts a new session, and the store takes slots of the
// new session for all requests in flight. A request for which no slots are left loses its slots
// (ratelimit.Slot.Lost). During an outage no process can take slots, so no request loses its slots to
// another.
type slots struct {
	server   *server
	sessions Table    // the table of sessions
	lanes    [2]*lane // run releases, and the takes of retake

	used       int32 // 1 after the first session; atomic
	unanswered int32 // the number of releases in releasing; atomic

	starting sync.Mutex // held during the start of a session

	mu         sync.Mutex // guards all that follows
	session    int64      // the current session; 0 before the first
	renewedAt  time.Time  // the time at which the last renewal was sent
	lastNumber int64      // the low bits of the last slot
	held       map[*heldSlots]bool
	rows       map[lease.RowID]int64       // the number of slots in held, by row
	local      map[lease.RowID]int64       // the number of slots of Store.HoldLocal, by row
	uncertain  []uncertainSlots            // slots that need further releases
	releasing  map[lease.RowID][]slotRange // the releases that the server has not answered
	ticking    bool                        // tick is running
}

// slotRange describes N consecutive slots of a row, from First on.
type slotRange struct {
	Limit    *ratelimit.Limit
	Row      lease.RowID
	First, N int64
}

// uncertainSlots are slots that may or may not have been taken.
type uncertainSlots struct {
	slotRange
	due   time.Time // the time of the next release
	until time.Time // the time after which releases end
}

// heldSlots are the slots of one admitted hit.
type heldSlots struct {
	slotRange
	slot  *ratelimit.Slot
	ended bool // the hit has released them
	// next is the Slot that retake fills after a new session has started; nil before.
	next *ratelimit.Slot
}

// newSlots returns slots without a session and without held slots.
func newSlots(v *server, sessions Table, lanes [2]*lane) *slots {
	return &slots{server: v, sessions: sessions, lanes: lanes, held: map[*heldSlots]bool{},
		rows: map[lease.RowID]int64{}, local: map[lease.RowID]int64{},
		releasing: map[lease.RowID][]slotRange{}}
}

// statements returns a pipeline with the guard, if there is one, and a statement on the table of sessions.
// Its commit waits for no standby: a failover ends sessions that the standby lacks.
func (s *slots) statements(statement *pgdb.Statement) []*pgdb.Statement {
	statement.SQL = strings.ReplaceAll(statement.SQL, "{table}", s.sessions.Name)
	settings := "SELECT true" + diskSQL
	if s.sessions.Guard != "" {
		settings += guardedSQL + s.sessions.Guard
	}
	return []*pgdb.Statement{{SQL: settings, Joined: true, Unnamed: true}, statement}
}

// current returns the session, and reports whether the store may use it.
func (s *slots) current() (int64, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.session, s.usable(time.Now())
}

// usable reports whether the store may use its session. The caller holds mu.
func (s *slots) usable(now time.Time) bool {
	return s.session != 0 && now.Sub(s.renewedAt) < sessionTime &&
		now.Round(0).Sub(s.renewedAt.Round(0)) < sessionTime
}

// Session returns a usable session. It starts a new one if necessary, with timeout for each attempt.
func (s *slots) Session(ctx context.Context, timeout time.Duration) (int64, error) {
	session, ok := s.current()
	if ok {
		return session, nil
	}
	s.starting.Lock()
	defer s.starting.Unlock()
	previous, ok := s.current()
	if ok {
		return previous, nil
	}
	sent := time.Now()
	for {
		start := &pgdb.Statement{SQL: sessionSQL, Args: []any{previous}, Unnamed: true}
		if _, err := s.server.run(ctx, timeout, s.statements(start)); err != nil {
			return 0, err
		}
		if start.Err != nil {
			return 0, fmt.Errorf("slots of requests in flight: %w", start.Err)
		}
		if names := pg.Bigints(start.Result); len(names) == 1 {
			session = names[0]
			break
		}
	}
	atomic.StoreInt32(&s.used, 1)
	s.mu.Lock()
	s.session = session
	s.renewedAt = sent
	var lost []*heldSlots
	for h := range s.held {
		lost = append(lost, h)
	}
	s.held = map[*heldSlots]bool{}
	s.rows = map[lease.RowID]int64{}
	s.uncertain = nil
	tick := !s.ticking
	s.ticking = true
	s.mu.Unlock()
	if len(lost) > 0 {
		go s.retake(lost)
	}
	if tick {
		go s.tick()
	}
	return session, nil
}

// Allocate returns the first of n consecutive slot numbers of a session.
func (s *slots) Allocate(session, n int64) int64 {
	const maxNumber = int64(1)<<32 - 1
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lastNumber+n > maxNumber {
		s.lastNumber = 0
	}
	first := session<<32 | (s.lastNumber + 1)
	s.lastNumber += n
	return first
}

// tick renews the session when that is due, until the store is closed.
func (s *slots) tick() {
	closing := s.server.closing
	for health.Sleep(closing, tickInterval); closing.Err() == nil; health.Sleep(closing, tickInterval) {
		s.server.report(batch.PanicError(func() { s.renew(closing, time.Now()) }))
	}
}

// renew releases the uncertain slots that are due for another release, and renews the session if that is due.
// If the session has expired, renew starts a new one.
func (s *slots) renew(closing context.Context, now time.Time) {
	s.mu.Lock()
	session, fresh, renewedAt := s.session, s.usable(now), s.renewedAt
	down := s.server.health.Unavailable() != nil
	again := s.dueUncertain(now, down)
	s.mu.Unlock()
	s.Release(again)
	if fresh && now.Sub(renewedAt) < renewInterval || down {
		return
	}
	if fresh {
		renewal := &pgdb.Statement{SQL: renewSQL, Args: []any{session}, Unnamed: true}
		err := s.server.db.Run(closing, renewTimeout, s.statements(renewal))
		if err != nil || renewal.Err != nil {
			return // requests detect an outage
		}
		s.mu.Lock()
		// Meanwhile, a batch has started another session, or releaseEnded has ended this one.
		replaced := s.session != session || s.renewedAt != renewedAt
		switch {
		case replaced:
		case renewal.Rows == 1:
			s.renewedAt = now
		default:
			s.renewedAt = time.Time{} // the row has expired
		}
		s.mu.Unlock()
		if replaced || renewal.Rows == 1 {
			return
		}
	}
	_, _ = s.Session(closing, renewTimeout) // the next tick tries again
}

// retake takes slots of the new session for requests in flight, and retries until each has a decision.
func (s *slots) retake(lost []*heldSlots) {
	for len(lost) > 0 && s.server.closing.Err() == nil {
		if lost = s.tryRetake(lost); len(lost) > 0 {
			health.Sleep(s.server.closing, renewInterval)
		}
	}
}

// tryRetake tries once to take slots for requests, and returns the undecided ones. Refused requests lose
// their slots.
func (s *slots) tryRetake(lost []*heldSlots) []*heldSlots {
	calls := make([]*batch.Call, len(lost))
	for i, h := range lost {
		next := nextSlot(h)
		s.mu.Lock()
		ended := h.ended
		h.next = next
		s.mu.Unlock()
		if ended {
			continue
		}
		calls[i] = batch.NewCall()
		calls[i].Prepare([]ratelimit.Hit{{Limit: h.Limit, Key: h.Row.Key, Cost: h.N, Slot: next}}, false)
		batch.Send(s.lanes[laneOf(calls[i].Hits)].queue, calls[i], time.Now())
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

// nextSlot returns the Slot that holds a request's slots of the next session.
func nextSlot(h *heldSlots) *ratelimit.Slot {
	return &ratelimit.Slot{Lost: func() { h.slot.Lose() }}
}

// Hold passes the granted slots of a hit to its Slot. If a new session has started since the slots were
// allocated, they no longer count, and Hold takes slots of the new session in the background.
func (s *slots) Hold(r slotRange, h *ratelimit.Hit) {
	held := &heldSlots{slotRange: r, slot: h.Slot}
	s.mu.Lock()
	current := r.First>>32 == s.session
	if current {
		s.held[held] = true
		s.rows[r.Row] += r.N
	}
	s.mu.Unlock()
	h.Slot.Hold(func() { s.releaseHeld(held) })
	if !current {
		go s.retake([]*heldSlots{held})
	}
}

// releaseHeld releases the slots of a hit.
func (s *slots) releaseHeld(h *heldSlots) {
	s.mu.Lock()
	next := h.next
	h.ended = true
	if s.held[h] {
		delete(s.held, h)
		if n := s.rows[h.Row] - h.N; n > 0 {
			s.rows[h.Row] = n
		} else {
			delete(s.rows, h.Row)
		}
	}
	s.mu.Unlock()
	if next != nil {
		next.Release()
		return
	}
	s.Release([]slotRange{h.slotRange})
}

// CountRow returns the number of a row's slots that requests in flight hold, also without the database.
func (s *slots) CountRow(row lease.RowID) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rows[row] + s.local[row]
}

// Used reports whether the store has ever started a session.
func (s *slots) Used() bool { return atomic.LoadInt32(&s.used) == 1 }
