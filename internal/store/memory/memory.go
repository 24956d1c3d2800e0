// Package memory is the store of package ratelimit/memory, and what proxies need of the store beyond that.
package memory

import (
	"context"
	"hash/maphash"
	"sort"
	"strconv"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// defaultCapacity is the default of Options.Capacity: some 200 MB, at about 200 bytes a key.
const defaultCapacity = 1000000

// Options are those of package ratelimit/memory.
type Options struct {
	Capacity int
	Now      func() time.Time
}

// Store is a ratelimit.Store in this process.
type Store struct {
	now    func() time.Time
	seed   maphash.Seed
	shards []*shard
}

const (
	mostShards = 64
	// leastKeys is the fewest keys of a shard: a store for few keys has one shard, and
	// then keeps its bound exactly.
	leastKeys = 1024
)

// New returns an empty store. The error is a *ratelimit.FieldError for an option that is
// out of its range.
func New(o Options) (*Store, error) {
	if o.Capacity < 0 {
		return nil, &ratelimit.FieldError{Field: "Capacity", Value: strconv.Itoa(o.Capacity), Want: "0 or more"}
	}
	if o.Capacity == 0 {
		o.Capacity = defaultCapacity
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	n := o.Capacity / leastKeys
	if n < 1 {
		n = 1
	}
	if n > mostShards {
		n = mostShards
	}
	s := &Store{now: o.Now, seed: maphash.MakeSeed()}
	for i := 0; i < n; i++ {
		s.shards = append(s.shards, newShard((o.Capacity+n-1)/n))
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
	all, err := s.take(hits, decisions)
	if err != nil {
		return err
	}
	for i := range hits {
		if hits[i].Limit.Algorithm == ratelimit.InFlight && decisions[i].Allowed && !hits[i].Peek &&
			(all || hits[i].Apart) {
			s.hold(hits[i])
		}
	}
	return nil
}

// hold gives a hit that was charged its slots.
func (s *Store) hold(h ratelimit.Hit) { h.Slot.Hold(func() { s.free(h) }) }

// free gives back the slots of a hit that was charged.
func (s *Store) free(h ratelimit.Hit) {
	k := rowID{h.Limit.Durable, h.Limit.Prefix, h.StoredKey()}
	sh := s.shardOf(k)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if e := sh.rows[k]; e != nil {
		algorithm.Of(h.Limit).Adjust(h.Limit, &e.row, s.now().UnixMicro(), h.Cost, 0)
		if e.row.Blank() {
			sh.removeEntry(e)
		}
	}
}

// take decides hits, and reports whether all that are not apart are allowed.
func (s *Store) take(hits []ratelimit.Hit, decisions []ratelimit.Decision) (bool, error) {
	keys, shards, err := s.lock(hits)
	defer unlock(shards)
	if err != nil {
		return false, err
	}
	now := s.now().UnixMicro()
	rows := make([]*algorithm.Row, len(hits))
	nows := make([]int64, len(hits))
	for i := range hits {
		rows[i] = s.shardOf(keys[i]).row(keys[i], now)
		nows[i] = now
	}
	all := algorithm.Decide(hits, rows, nows, decisions)
	for i := range hits {
		decisions[i].Source = ratelimit.FromMemory
		if rows[i].Blank() {
			s.shardOf(keys[i]).remove(keys[i])
		}
	}
	for _, sh := range shards {
		sh.sweep(now)
	}
	return all, nil
}

// Settle changes a counter by what is known of a request's cost afterwards.
func (s *Store) Settle(h *batch.Settlement) {
	if h.Source != ratelimit.FromMemory {
		return
	}
	k := rowID{h.Limit.Durable, h.Limit.Prefix, h.Key}
	sh := s.shardOf(k)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if e := sh.rows[k]; e != nil {
		algorithm.Of(h.Limit).Adjust(h.Limit, &e.row, s.now().UnixMicro(), h.Back, h.DecidedAt)
		if e.row.Blank() {
			sh.removeEntry(e)
		}
	}
}

// Reset implements ratelimit.Store.
func (s *Store) Reset(ctx context.Context, timeout time.Duration, hits []ratelimit.Hit) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	keys, shards, err := s.lock(hits)
	defer unlock(shards)
	if err != nil {
		return err
	}
	for i := range keys {
		s.shardOf(keys[i]).remove(keys[i])
	}
	return nil
}

// Close implements ratelimit.Store.
func (s *Store) Close() {
	for _, sh := range s.shards {
		sh.mu.Lock()
		sh.closed = true
		sh.rows = nil
		sh.entries = nil
		sh.mu.Unlock()
	}
}

// Len is how many keys the store holds, including expired keys that are not yet removed.
func (s *Store) Len() int {
	n := 0
	for _, sh := range s.shards {
		sh.mu.Lock()
		n += len(sh.entries)
		sh.mu.Unlock()
	}
	return n
}

// lock returns the keys of the hits, and their shards once each, which it has locked. The
// order of the locks is that of the shards, so two calls cannot wait for each other.
func (s *Store) lock(hits []ratelimit.Hit) ([]rowID, []*shard, error) {
	keys := make([]rowID, len(hits))
	var at []int
	for i := range hits {
		h := &hits[i]
		if h.Limit == nil {
			return nil, nil, h.Validate()
		}
		keys[i] = rowID{h.Limit.Durable, h.Limit.Prefix, h.StoredKey()}
		at = append(at, s.shardAt(keys[i]))
	}
	if len(hits) == 0 {
		at = []int{0} // it says whether the store is closed
	}
	sort.Ints(at)
	var shards []*shard
	var err error
	for i := range at {
		if i > 0 && at[i] == at[i-1] {
			continue
		}
		sh := s.shards[at[i]]
		sh.mu.Lock()
		shards = append(shards, sh)
		if sh.closed {
			err = ratelimit.ErrClosed
		}
	}
	return keys, shards, err
}

func unlock(shards []*shard) {
	for _, sh := range shards {
		sh.mu.Unlock()
	}
}

// shardAt is the index of a key's shard.
func (s *Store) shardAt(k rowID) int {
	if len(s.shards) == 1 {
		return 0
	}
	return int(maphash.String(s.seed, k.key) % uint64(len(s.shards)))
}

func (s *Store) shardOf(k rowID) *shard { return s.shards[s.shardAt(k)] }
