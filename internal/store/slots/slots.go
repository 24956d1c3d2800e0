// Package slots manages the slots of requests in flight on limits InFlight (see algorithm/in_flight.go). Each
// slot ends with its request, or soon after its process. The caller keeps a ratelimit.Hold for its request,
// and this package keeps a heldSlots for each admitted hit.
//
// A slot is a number. The statement or transaction of a request takes the slots of its hits. After
// ratelimit.Hold.Release, the next batch releases the slots before it decides its requests (see Release). A
// release is repeated until the server has answered. A second release of a slot has no effect, because a
// process uses a number again only after about 2^32 others.
//
// The high bits of the number are a name of this process (see package process). When the process takes
// another name, it takes slots of it for all requests in flight. A request for which no slots are left loses
// its slots (ratelimit.Hold.Lost). During an outage no process can take slots, so no request loses its slots
// to another.
//
// The files, from the top down: name.go, slots.go, releases.go.
//
// Traefik interprets this package: see internal/testkit/imports/interpreted.go for the restrictions.
package slots

import (
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/store/process"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Slots holds the slots of a store.
type Slots struct {
	process.Options
	add func(j *batch.Job) // adds a release to the jobs of the store

	Name       *process.Name // guarded by mu
	unanswered int32         // the number of releases in releasing; atomic

	mu         sync.Mutex // guards all that follows
	lastNumber int64      // the low bits of the last slot
	held       map[*heldSlots]bool
	rows       map[lease.RowID]int64   // the number of slots in held, and of AcquireLocal, by row
	uncertain  []uncertainSlots        // slots that need further releases
	releasing  map[lease.RowID][]Range // the releases that the server has not answered
}

// Range describes N consecutive slots of a row, from First on.
type Range struct {
	Limit    *ratelimit.Limit
	Row      lease.RowID
	First, N int64
}

// uncertainSlots are slots that may or may not have been taken.
type uncertainSlots struct {
	Range
	due   time.Time // the time of the next release
	until time.Time // the time after which releases end
}

// heldSlots are the slots of one admitted hit.
type heldSlots struct {
	Range
	hold  *ratelimit.Hold
	ended bool // the hit has released them
	// next is the Hold that regain fills after the process has a new name; nil before.
	next *ratelimit.Hold
}

// New returns Slots without a name and without held slots.
func New(o process.Options, add func(j *batch.Job)) *Slots {
	s := &Slots{Options: o, add: add, held: map[*heldSlots]bool{}, rows: map[lease.RowID]int64{},
		releasing: map[lease.RowID][]Range{}}
	s.Name = process.New(&s.mu, o, false, func(previous int64) { s.began(previous) })
	return s
}

// NameOf returns the name of a slot number.
func NameOf(slot int64) int64 { return slot >> 32 }

// Allocate returns the first of n consecutive slot numbers of a name.
func (s *Slots) Allocate(name, n int64) int64 {
	const maxNumber = int64(1)<<32 - 1
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lastNumber+n > maxNumber {
		s.lastNumber = 0
	}
	first := name<<32 | (s.lastNumber + 1)
	s.lastNumber += n
	return first
}

// Acquire passes the granted slots of a hit to its Hold. If the process has a new name since the slots were
// allocated, they no longer count, and Acquire takes slots of the new name in the background.
func (s *Slots) Acquire(r Range, h *ratelimit.Hit) {
	held := &heldSlots{Range: r, hold: h.Hold}
	s.mu.Lock()
	current := NameOf(r.First) == s.Name.Last()
	if current {
		s.held[held] = true
		s.count(r.Row, r.N)
	}
	s.mu.Unlock()
	h.Hold.Acquire(func() { s.releaseHeld(held) })
	if !current {
		go s.regain([]*heldSlots{held})
	}
}

// regain takes slots of the new name for requests in flight, and retries until each has a decision.
func (s *Slots) regain(lost []*heldSlots) {
	for len(lost) > 0 && s.Closing.Err() == nil {
		if lost = s.tryRegain(lost); len(lost) > 0 {
			health.Sleep(s.Closing, process.RenewInterval)
		}
	}
}

// tryRegain tries once to take slots for requests, and returns the undecided ones. Refused requests lose
// their slots.
func (s *Slots) tryRegain(lost []*heldSlots) []*heldSlots {
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
		calls[i].Prepare([]ratelimit.Hit{{Limit: h.Limit, Key: h.Row.Key, Cost: h.N, Hold: next}}, false)
		s.Send(calls[i])
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
			lost[i].hold.Lose()
		}
	}
	return undecided
}

// nextSlot returns the Hold that holds a request's slots of the next name.
func nextSlot(h *heldSlots) *ratelimit.Hold {
	return &ratelimit.Hold{Lost: func() { h.hold.Lose() }}
}

// AcquireLocal counts the slots of a hit that was admitted without the database, until its Hold is released.
func (s *Slots) AcquireLocal(row lease.RowID, h *ratelimit.Hit) {
	cost := h.Cost
	s.addLocal(row, cost)
	h.Hold.Acquire(func() { s.addLocal(row, -cost) })
}

// addLocal adds to the number of a row's slots that were admitted without the database.
func (s *Slots) addLocal(row lease.RowID, n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count(row, n)
}

// count adds to the number of a row's slots. The caller holds mu.
func (s *Slots) count(row lease.RowID, n int64) {
	if s.rows[row] += n; s.rows[row] == 0 {
		delete(s.rows, row)
	}
}

// releaseHeld releases the slots of a hit.
func (s *Slots) releaseHeld(h *heldSlots) {
	s.mu.Lock()
	next := h.next
	h.ended = true
	if s.held[h] {
		delete(s.held, h)
		s.count(h.Row, -h.N)
	}
	s.mu.Unlock()
	if next != nil {
		next.Release()
		return
	}
	s.Release([]Range{h.Range})
}

// CountRow returns the number of a row's slots that requests in flight hold, also without the database.
func (s *Slots) CountRow(row lease.RowID) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rows[row]
}
