// Package shards implements the store on Postgres. It has one or more engines, each with its queues, leases
// and remembered refusals. Without Citus it has one, the engine of the database. With Citus, the counts can
// be in shards: schemas with the tables of counts, on the servers of Citus. The function rate_limit_shards of
// the database lists the shards, before the first queue exists. Then the engine of the database decides
// nothing, and each shard has an engine that runs its statements at the server of the shard. An engine does
// not depend on shards: the names of its tables and its guard are values.
//
// A row is in the shard of its subject, which is Hit.Subject, or the stored key without one. A request of one
// subject is decided in its shard as on a single server.
//
//   - shards.go: the store. queue.go: queues of calls that a proxy sends.
//   - several.go: requests of several subjects.
//   - routes.go: the server of a shard. db.go: the statements of a shard.
package shards

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Store counts in Postgres.
type Store struct {
	base    *engine.Store // of the database; it shows whether the database answers
	options engine.Options
	routes  *routes // nil if db cannot connect to other servers
	closing context.Context
	stop    context.CancelFunc

	setup   *engine.Setup   // finds the engines
	engines []*engine.Store // one, or those of the shards; set before setup is ready

	mu     sync.Mutex // guards closed
	closed bool
}

// reaching is a DB that can connect to other servers with its own database and account, as that of pgxdb can.
// At does not touch the network yet.
type reaching interface {
	At(host string, port int) (pgdb.DB, error)
}

// Open returns a store on db, and closes db in its Close. It does not touch the network yet.
func Open(db pgdb.DB, o engine.Options) (*Store, error) {
	base, err := engine.New(db, o)
	if err != nil {
		return nil, err
	}
	s := &Store{base: base, options: o}
	s.closing, s.stop = context.WithCancel(context.Background())
	if other, ok := db.(reaching); ok {
		s.routes = newRoutes(db, other)
	}
	s.setup = engine.NewSetup(s.closing, base.Health(), func(err error) { o.Report(err) },
		func(ctx context.Context) error { return s.find(ctx) })
	return s, nil
}

// find finds the engines, once.
func (s *Store) find(ctx context.Context) error {
	found := false
	if s.routes != nil {
		sent := time.Now()
		h := s.base.Health()
		begin := h.Begin()
		some, down, err := s.routes.find(ctx)
		if down {
			err = h.Failed(begin, time.Since(sent), err)
		}
		if err != nil {
			return err
		}
		found = some
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ratelimit.ErrClosed
	}
	if !found {
		s.engines = append(s.engines, s.base)
		s.base.Prepare()
		return nil
	}
	n := len(s.routes.schemas)
	for shard := len(s.engines); shard < n; shard++ {
		o := s.options
		o.Tables = s.routes.tables[shard]
		o.Of = n
		//nolint:staticcheck // Yaegi does not convert an argument
		var db pgdb.DB = newShardDB(s.routes, shard)
		one, err := engine.New(db, o)
		if err != nil {
			return err
		}
		s.engines = append(s.engines, one)
	}
	return nil
}

// Prepare starts, in the background, a connection and the migration if one is due, so that the first decision
// does not wait for them.
func (s *Store) Prepare() {
	if !engine.Ready(s.setup) {
		engine.Start(s.setup)
		return
	}
	for _, one := range s.engines {
		one.Prepare()
	}
}

// Ready reports whether the tables of counts are as they must be.
func (s *Store) Ready() bool {
	if !engine.Ready(s.setup) {
		return false
	}
	for _, one := range s.engines {
		if !one.Ready() {
			return false
		}
	}
	return true
}

// await waits until the engines are found, and returns the rest of a timeout. While the database is down, it
// returns at once.
func (s *Store) await(ctx context.Context, timeout time.Duration) (time.Duration, error) {
	if engine.Ready(s.setup) {
		return timeout, nil
	}
	if s.closing.Err() != nil {
		return 0, ratelimit.ErrClosed
	}
	h := s.base.Health()
	if err := h.Unavailable(); err != nil {
		return 0, err
	}
	if timeout <= 0 {
		return 0, ratelimit.ErrTimeout
	}
	within, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if err := s.setup.Await(within); err != nil {
		if ctx.Err() != nil {
			return 0, h.Ended(ctx)
		}
		return 0, h.NoDecision(err, false)
	}
	deadline, _ := within.Deadline()
	return batch.RoundDown(time.Until(deadline)), nil
}

// all returns the engine of the database, and those of the shards.
func (s *Store) all() []*engine.Store {
	all := []*engine.Store{s.base}
	if engine.Ready(s.setup) && s.engines[0] != s.base {
		all = append(all, s.engines...)
	}
	return all
}

// Engine returns the engine that counts for a subject, or nil before the engines are found.
func (s *Store) Engine(subject string) *engine.Store {
	if !engine.Ready(s.setup) {
		return nil
	}
	if len(s.engines) == 1 {
		return s.base
	}
	return s.engines[Of(subject, len(s.engines))]
}

// Of returns the shard of a subject: the first four bytes of its SHA-256, as a number, modulo the number
// of shards. In SQL that is
//
//	('x' || left(encode(sha256(convert_to(subject, 'UTF8')), 'hex'), 8))::bit(32)::bigint % shards
func Of(subject string, shards int) int {
	sum := sha256.Sum256([]byte(subject))
	return int(binary.BigEndian.Uint32(sum[:4]) % uint32(shards))
}

// several is the result of shardOf for hits that are not in one shard.
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
		next := Of(of, len(s.engines))
		if i > 0 && next != shard {
			return several
		}
		shard = next
	}
	return shard
}

// subjectOf returns the subject of a hit.
func subjectOf(h *ratelimit.Hit) string {
	if h.Subject != "" {
		return h.Subject
	}
	return h.StoredKey()
}

// Take implements ratelimit.Store.
func (s *Store) Take(ctx context.Context, timeout time.Duration, hits []ratelimit.Hit,
	decisions []ratelimit.Decision) error {
	if !engine.Ready(s.setup) || len(s.engines) > 1 { // else the engine validates the hits
		if err := ratelimit.ValidateHits(hits, decisions); err != nil {
			return err
		}
	}
	timeout, err := s.await(ctx, timeout)
	if err != nil {
		return err
	}
	if len(s.engines) == 1 {
		return s.engines[0].Take(ctx, timeout, hits, decisions)
	}
	if shard := s.shardOf(hits); shard != several {
		return s.engines[shard].Take(ctx, timeout, hits, decisions)
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
	left, err := s.await(ctx, timeout)
	if err != nil {
		return err
	}
	return s.reset(ctx, left, hits)
}

// Leases returns the rows that the engine of the database remembers. With shards it remembers none.
func (s *Store) Leases() *lease.Set { return s.base.Leases() }

// Health returns the health of the server of the database.
func (s *Store) Health() *health.Health { return s.base.Health() }

// Settle changes a counter soon, and does not wait for that.
func (s *Store) Settle(h *batch.Settlement) {
	subject := h.Subject
	if subject == "" {
		subject = h.Key
	}
	if one := s.Engine(subject); one != nil {
		one.Settle(h)
	}
}

// Answers implements local.Next. No shard answers before the engines are found.
func (s *Store) Answers(subject string) bool {
	one := s.Engine(subject)
	return one != nil && one.Unavailable() == nil
}

// Charge implements local.Next, after Answers.
func (s *Store) Charge(subject string, row lease.RowID, l *ratelimit.Limit, units int64) {
	s.Engine(subject).Charge(row, l, units)
}

// Held returns the number of slots of a row that the requests of this process hold.
func (s *Store) Held(row lease.RowID) int64 {
	n := int64(0)
	for _, one := range s.all() {
		n += one.Held(row)
	}
	return n
}

// Unavailable returns why no shard can decide, or nil if one of them can, see engine.Store.Unavailable.
func (s *Store) Unavailable() error {
	if !engine.Ready(s.setup) {
		return s.base.Unavailable()
	}
	var err error
	for _, one := range s.engines {
		if err = one.Unavailable(); err == nil {
			return nil
		}
	}
	return err
}

// Stats returns the counts as of now.
func (s *Store) Stats() engine.Stats {
	sum := engine.Stats{}
	for _, one := range s.all() {
		stats := one.Stats()
		sum.Add(&stats)
	}
	return sum
}

// Tick checks in the background whether the servers of the engines were restored or replaced.
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
	all := s.all()
	for i := 1; i < len(all); i++ {
		startClose(&closing, all[i])
	}
	closing.Wait()
	if s.routes != nil {
		s.routes.close()
	}
	s.base.Close()
}

// startClose closes a store, or a DB, in the background.
func startClose(closing *sync.WaitGroup, what interface{ Close() }) {
	closing.Add(1)
	go func() {
		_ = batch.PanicError(func() { what.Close() })
		closing.Done()
	}()
}
