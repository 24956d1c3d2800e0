// Package shards is a store over stores. The counts of a database can be in shards, on the servers of Citus. A shard is a
// schema with the two tables of counts and rate_limit_processes. The function rate_limit_shards of the database says
// which shards there are, so a Store finds out when the tables are looked for. If there are none, the store of the
// database decides. Else that store decides nothing, and each shard has a store of its own, with its queues, leases
// and known refusals. Their statements run at the server of the shard. They do not know of shards: the names of the
// tables and the guard are values of a store.
//
// A row is in the shard of its subject, which is Hit.Subject, or the key as it is stored. A request of one subject is
// decided in its shard as on a single server.
//
//   - shards.go: the store. several.go: requests of several subjects. routes.go: on which server a shard is. db.go: the
//     statements of a shard.
package shards

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/store/chain"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// States of a Store.
const (
	unknown = iota // the database has not answered yet
	none           // the counts are in one database
	found          // stores and routes are set
)

// Store is a store over those of the shards. The next one is that of the database.
type Store struct {
	chain.Link
	open    func(db pgdb.DB, place chain.Place) (chain.Store, error)
	routes  *routes
	closing context.Context // ends with Close
	stop    context.CancelFunc
	report  func(error)

	state  int32         // atomic
	stores []chain.Store // by shard; they do not change

	mu     sync.Mutex // guards all that follows
	closed bool
	queues map[*batch.Queue]*shardQueues // by the queue of OpenQueue
}

// shardQueues are the queues of the shards for the calls of a queue of OpenQueue.
type shardQueues struct {
	deliver func(calls []*batch.Call)
	to      []*batch.Queue // by shard; nil before the first call
}

// reaching is a DB that can connect to other servers with what it knows of the database and of the account, as
// that of pgxdb can. At does not touch the network yet.
type reaching interface {
	At(host string, port int) (pgdb.DB, error)
}

// Open returns a store on db. open opens the store of a place on a DB; report is called with
// failures that no caller sees; it may be nil.
func Open(db pgdb.DB, open func(db pgdb.DB, place chain.Place) (chain.Store, error),
	report func(error)) (chain.Store, error) {
	other, ok := db.(reaching)
	if !ok {
		return open(db, chain.Place{})
	}
	closing, stop := context.WithCancel(context.Background())
	s := &Store{open: open, routes: newRoutes(db, other), closing: closing, stop: stop, report: report,
		queues: map[*batch.Queue]*shardQueues{}}
	root, err := open(db, chain.Place{
		Find:   func(ctx context.Context) (bool, bool, error) { return s.find(ctx) },
		Divert: func(q *batch.Queue, calls []*batch.Call) bool { return s.divert(q, calls) },
	})
	if err != nil {
		return nil, err
	}
	s.Next = root
	return s, nil
}

// find finds out whether the counts are in shards, once. It is chain.Place.Find.
func (s *Store) find(ctx context.Context) (bool, bool, error) {
	if state := atomic.LoadInt32(&s.state); state != unknown {
		return state == found, false, nil
	}
	some, down, err := s.routes.find(ctx)
	if err != nil {
		return false, down, err
	}
	if !some {
		atomic.StoreInt32(&s.state, none)
		return false, false, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false, false, ratelimit.ErrClosed
	}
	n := len(s.routes.schemas)
	for shard := len(s.stores); shard < n; shard++ {
		var db pgdb.DB = newShardDB(s.routes, shard) //nolint:staticcheck // Yaegi does not convert an argument of s.open
		one, err := s.open(db, chain.Place{Tables: s.routes.tables[shard], Of: n})
		if err != nil {
			return false, false, err
		}
		s.stores = append(s.stores, one)
	}
	atomic.StoreInt32(&s.state, found)
	return true, false, nil
}

// inShards reports whether there are shards. It is false if that is not known yet.
func (s *Store) inShards() bool { return atomic.LoadInt32(&s.state) == found }

// await waits until it is known whether there are shards, and returns what is left of a timeout. If that is not known
// after it, a batch of the store of the database gets the error.
func (s *Store) await(ctx context.Context, timeout time.Duration) time.Duration {
	if atomic.LoadInt32(&s.state) != unknown || s.Next.Unavailable() != nil {
		return timeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if s.Next.Await(ctx) == nil {
		return timeout
	}
	deadline, _ := ctx.Deadline()
	return batch.RoundDown(time.Until(deadline))
}

// all are the store of the database and those of the shards. They are copied one by one because Yaegi takes the type
// of the stores for another one.
func (s *Store) all() []chain.Store {
	all := []chain.Store{s.Next}
	if s.inShards() {
		for shard := range s.stores { //nolint:staticcheck // see above
			all = append(all, s.stores[shard])
		}
	}
	return all
}

// of is the store that counts for a subject.
func (s *Store) of(subject string) chain.Store {
	if !s.inShards() {
		return s.Next
	}
	return s.stores[Of(subject, len(s.stores))]
}

// Of is the shard of a subject: the first four bytes of its SHA-256, as a number, modulo the number
// of shards. In SQL that is
//
//	('x' || left(encode(sha256(convert_to(subject, 'UTF8')), 'hex'), 8))::bit(32)::bigint % shards
func Of(subject string, shards int) int {
	sum := sha256.Sum256([]byte(subject))
	return int(binary.BigEndian.Uint32(sum[:4]) % uint32(shards))
}

// several is what shardOf returns for hits that are not in one shard.
const several = -1

// shardOf returns the shard of all hits of a call, or several.
func (s *Store) shardOf(hits []ratelimit.Hit) int {
	shard := several
	subject := ""
	for i := range hits {
		h := &hits[i]
		of := subjectOf(h)
		if i > 0 && of == subject {
			continue
		}
		subject = of
		next := Of(of, len(s.stores))
		if i > 0 && next != shard {
			return several
		}
		shard = next
	}
	return shard
}

// subjectOf is the subject of a hit.
func subjectOf(h *ratelimit.Hit) string {
	if h.Subject != "" {
		return h.Subject
	}
	return h.StoredKey()
}

// Take implements ratelimit.Store.
func (s *Store) Take(ctx context.Context, timeout time.Duration, hits []ratelimit.Hit,
	decisions []ratelimit.Decision) error {
	if atomic.LoadInt32(&s.state) == none {
		return s.Next.Take(ctx, timeout, hits, decisions)
	}
	if err := ratelimit.ValidateHits(hits, decisions); err != nil {
		return err
	}
	timeout = s.await(ctx, timeout)
	if !s.inShards() {
		return s.Next.Take(ctx, timeout, hits, decisions)
	}
	if shard := s.shardOf(hits); shard != several {
		return s.stores[shard].Take(ctx, timeout, hits, decisions)
	}
	return s.takeSeveral(ctx, timeout, hits, decisions)
}

// Reset implements ratelimit.Store.
func (s *Store) Reset(ctx context.Context, timeout time.Duration, hits []ratelimit.Hit) error {
	for i := range hits {
		if hits[i].Limit == nil {
			return hits[i].Validate()
		}
	}
	if timeout = s.await(ctx, timeout); s.inShards() {
		return s.reset(ctx, timeout, hits)
	}
	return s.Next.Reset(ctx, timeout, hits)
}

// OpenQueue implements chain.Store. The queue is that of the database, and divert passes its calls on.
func (s *Store) OpenQueue(timeout time.Duration, deliver func(calls []*batch.Call)) *batch.Queue {
	q := s.Next.OpenQueue(timeout, deliver)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queues[q] = &shardQueues{deliver: deliver}
	return q
}

// divert passes the calls of a batch of a queue of OpenQueue on to the shards, which finish them, and reports whether
// it has. The keys are not as they are stored yet. It is chain.Place.Divert.
func (s *Store) divert(q *batch.Queue, calls []*batch.Call) bool {
	if atomic.LoadInt32(&s.state) == none {
		return false
	}
	if s.await(context.Background(), q.Timeout); !s.inShards() {
		return false
	}
	for _, c := range calls {
		shard := several
		if len(c.Hits) > 0 {
			shard = s.shardOf(c.Hits)
		}
		if shard != several {
			batch.Send(s.queue(q, shard), c, c.Arrived)
		} else {
			s.startCall(q, c)
		}
	}
	return true
}

// queue returns the queue of a shard for the calls of a queue of OpenQueue.
func (s *Store) queue(q *batch.Queue, shard int) *batch.Queue {
	s.mu.Lock()
	defer s.mu.Unlock()
	queues := s.queues[q]
	if queues.to == nil {
		queues.to = make([]*batch.Queue, len(s.stores))
	}
	if queues.to[shard] == nil {
		queues.to[shard] = s.stores[shard].OpenQueue(q.Timeout, queues.deliver)
	}
	return queues.to[shard]
}

// Settle implements chain.Store.
func (s *Store) Settle(h *batch.Settlement) {
	subject := h.Subject
	if subject == "" {
		subject = h.Key
	}
	s.of(subject).Settle(h)
}

// Answers implements chain.Store. No shard answers before the shards are known.
func (s *Store) Answers(subject string) bool {
	return atomic.LoadInt32(&s.state) != unknown && s.of(subject).Answers(subject)
}

// Charge implements chain.Store.
func (s *Store) Charge(subject string, row lease.RowID, l *ratelimit.Limit, units int64) {
	s.of(subject).Charge(subject, row, l, units)
}

// Held implements chain.Store.
func (s *Store) Held(row lease.RowID) int64 {
	n := int64(0)
	for _, one := range s.all() {
		n += one.Held(row)
	}
	return n
}

// Unavailable returns why no shard can decide, or nil if one of them can.
func (s *Store) Unavailable() error {
	if !s.inShards() {
		return s.Next.Unavailable()
	}
	var err error
	for shard := range s.stores {
		if err = s.stores[shard].Unavailable(); err == nil {
			return nil
		}
	}
	return err
}

// Stats implements chain.Store.
func (s *Store) Stats() chain.Stats {
	sum := chain.Stats{}
	for _, one := range s.all() {
		stats := one.Stats()
		sum.Add(&stats)
	}
	return sum
}

// Tick implements chain.Store.
func (s *Store) Tick() {
	for _, one := range s.all() {
		one.Tick()
	}
}

// Close implements ratelimit.Store.
func (s *Store) Close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.stop()
	var closing sync.WaitGroup
	if s.inShards() {
		for shard := range s.stores {
			startClose(&closing, s.stores[shard])
		}
	}
	closing.Wait()
	s.routes.close()
	s.Next.Close()
}

// startClose closes a store, or a DB, in the background.
func startClose(closing *sync.WaitGroup, what interface{ Close() }) {
	closing.Add(1)
	go func() {
		_ = batch.PanicError(func() { what.Close() })
		closing.Done()
	}()
}
