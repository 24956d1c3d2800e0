// Package memory implements a store that counts in this process, for package ratelimit/memory and for proxies
// with dsn memory.
//
// A Store divides its keys into stripes, each with a mutex and a bound on its rows. Beyond the bound, a
// stripe evicts rows; an evicted key has its full quota again. Package algorithm decides. A request locks the
// stripes of its hits in the order of their indexes, decides all hits, and unlocks them, so that its hits are
// charged all together or not at all.
//
// The files, from the top down: memory.go, stripe.go.
//
// Traefik interprets this package: see internal/testkit/imports/interpreted.go for the restrictions.
package memory

import (
	"context"
	"hash/maphash"
	"sort"
	"strconv"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// defaultCapacity replaces an Options.Capacity of 0. At about 200 bytes a key, it takes some 200 MB.
const defaultCapacity = 1000000

// Options has the fields of ratelimit/memory.Options, which documents them.
type Options struct {
	Capacity int
	Now      func() time.Time
}

// Store is a ratelimit.Store in this process.
type Store struct {
	now     func() time.Time
	seed    maphash.Seed
	stripes []*stripe
}

const (
	maxStripes = 64
	// minKeysPerStripe is the smallest bound of a stripe if there are several. A store for fewer than twice
	// as many keys has one stripe, which keeps the bound exactly.
	minKeysPerStripe = 1024
)

// New returns an empty Store. The error is a *ratelimit.FieldError for an option out of range.
func New(o Options) (*Store, error) {
	if o.Capacity < 0 {
		return nil,
			&ratelimit.FieldError{Field: "Capacity", Value: strconv.Itoa(o.Capacity), Want: "0 or more"}
	}
	if o.Capacity == 0 {
		o.Capacity = defaultCapacity
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	n := o.Capacity / minKeysPerStripe
	if n < 1 {
		n = 1
	}
	if n > maxStripes {
		n = maxStripes
	}
	s := &Store{now: o.Now, seed: maphash.MakeSeed()}
	for i := 0; i < n; i++ {
		s.stripes = append(s.stripes,
			&stripe{max: (o.Capacity + n - 1) / n, rows: map[lease.RowID]*indexedRow{}})
	}
	return s, nil
}

// Take implements ratelimit.Store. It never waits.
func (s *Store) Take(ctx context.Context, timeout time.Duration, hits []ratelimit.Hit,
	decisions []ratelimit.Decision) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err := ratelimit.ValidateHits(hits, decisions); err != nil {
		return err
	}
	passes, err := s.decideRows(hits, decisions)
	if err != nil {
		return err
	}
	for i := range hits {
		h := &hits[i]
		holds := h.Limit.Algorithm == ratelimit.InFlight || h.Limit.Reserves && h.Cost > 0
		if holds && decisions[i].Allowed && !h.Peek && (passes || h.Independent) {
			s.acquireSlots(*h)
		}
	}
	return nil
}

// acquireSlots makes the caller's Hold release the units of a hit.
func (s *Store) acquireSlots(h ratelimit.Hit) { h.Hold.Acquire(func() { s.releaseSlots(h) }) }

// releaseSlots releases the slots or the units that a hit holds.
func (s *Store) releaseSlots(h ratelimit.Hit) {
	k := lease.RowOf(h.Limit, h.StoredKey())
	st := s.stripeOf(k)
	st.mu.Lock()
	defer st.mu.Unlock()
	if e := st.rows[k]; e != nil {
		if h.Limit.Reserves {
			algorithm.Settle(h.Limit, &e.row, s.now().UnixMicro(), 0, 0, h.Cost)
		} else {
			algorithm.Of(h.Limit).Adjust(h.Limit, &e.row, s.now().UnixMicro(), h.Cost, 0)
		}
		if e.row.Blank() {
			st.removeEntry(e)
		}
	}
}

// decideRows decides hits, and reports whether all of them are allowed, except those that are Independent.
func (s *Store) decideRows(hits []ratelimit.Hit, decisions []ratelimit.Decision) (bool, error) {
	keys, stripes, err := s.lock(hits)
	defer unlock(stripes)
	if err != nil {
		return false, err
	}
	now := s.now().UnixMicro()
	rows := make([]*algorithm.Row, len(hits))
	times := make([]int64, len(hits))
	for i := range hits {
		rows[i] = s.stripeOf(keys[i]).row(keys[i], now)
		times[i] = now
	}
	passes := algorithm.Decide(hits, rows, times, decisions)
	for i := range hits {
		decisions[i].Source = ratelimit.FromMemory
		if rows[i].Blank() {
			s.stripeOf(keys[i]).remove(keys[i])
		}
	}
	for _, st := range stripes {
		st.sweep(now)
	}
	return passes, nil
}

// Settle settles requests, and ends their holds.
func (s *Store) Settle(bills ...*batch.Bill) {
	var all []batch.Charge
	for _, one := range bills {
		all = append(all, one.Charges...)
	}
	for i := range all {
		c := &all[i]
		c.Hold.Release()
		k := lease.RowOf(c.Limit, c.Key)
		st := s.stripeOf(k)
		st.mu.Lock()
		now := s.now().UnixMicro()
		switch e := st.rows[k]; {
		case c.Limit.Reserves && !st.closed:
			algorithm.Settle(c.Limit, st.row(k, now), now, c.RealUnits, c.Excess, 0)
		case e != nil && c.Source == ratelimit.FromMemory:
			algorithm.Of(c.Limit).Adjust(c.Limit, &e.row, now, c.Charged-c.RealUnits, c.DecidedAt)
			if e.row.Blank() {
				st.removeEntry(e)
			}
		}
		st.mu.Unlock()
	}
}

// Reset implements ratelimit.Store.
func (s *Store) Reset(ctx context.Context, timeout time.Duration, hits []ratelimit.Hit) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	keys, stripes, err := s.lock(hits)
	defer unlock(stripes)
	if err != nil {
		return err
	}
	for i := range keys {
		s.stripeOf(keys[i]).remove(keys[i])
	}
	return nil
}

// Close implements ratelimit.Store.
func (s *Store) Close() {
	for _, st := range s.stripes {
		st.mu.Lock()
		st.closed = true
		st.rows = nil
		st.entries = nil
		st.mu.Unlock()
	}
}

// Len returns the number of keys that the store holds, including expired keys that are not yet removed.
func (s *Store) Len() int {
	n := 0
	for _, st := range s.stripes {
		st.mu.Lock()
		n += len(st.entries)
		st.mu.Unlock()
	}
	return n
}

// lock locks the stripes of the hits and returns the keys of the hits and each locked stripe once. The
// caller unlocks the stripes, also after an error. Stripes are locked in the order of their indexes, so that
// two calls cannot wait for each other.
func (s *Store) lock(hits []ratelimit.Hit) ([]lease.RowID, []*stripe, error) {
	keys := make([]lease.RowID, len(hits))
	var indexes []int
	for i := range hits {
		h := &hits[i]
		if h.Limit == nil {
			return nil, nil, ratelimit.ValidateHits(hits[i:i+1], make([]ratelimit.Decision, 1))
		}
		keys[i] = lease.RowOf(h.Limit, h.StoredKey())
		indexes = append(indexes, s.stripeIndex(keys[i]))
	}
	if len(hits) == 0 {
		indexes = []int{0} // any stripe shows whether the store is closed
	}
	sort.Ints(indexes)
	var stripes []*stripe
	var err error
	for i, index := range indexes {
		if i > 0 && index == indexes[i-1] {
			continue
		}
		st := s.stripes[index]
		st.mu.Lock()
		stripes = append(stripes, st)
		if st.closed {
			err = ratelimit.ErrClosed
		}
	}
	return keys, stripes, err
}

func unlock(stripes []*stripe) {
	for _, st := range stripes {
		st.mu.Unlock()
	}
}

// stripeIndex returns the index of a key's stripe.
func (s *Store) stripeIndex(k lease.RowID) int {
	if len(s.stripes) == 1 {
		return 0
	}
	return int(maphash.String(s.seed, k.Key) % uint64(len(s.stripes)))
}

func (s *Store) stripeOf(k lease.RowID) *stripe { return s.stripes[s.stripeIndex(k)] }
