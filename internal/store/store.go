// Package store is the store of a proxy that counts in Postgres, on one server or on the servers of Citus.
//
// A Store has one or more engines (package engine), each with its own queues, leases and remembered refusals.
// Without Citus, it has the engine of the database. With Citus, the counts can be in shards, which are
// schemas with the tables of counts. The function rate_limit_shards of the database lists them. Each shard
// then has an engine, which runs its statements on the server of the shard (shardDB, routes), and the engine
// of the database decides nothing. A Store finds its engines before the first decision, and never changes
// them.
//
// A row is in the shard of its subject, which is Hit.Subject, or the stored key if Subject is empty. A
// request of one subject is decided in one shard, as on a single server. A request with hits in several
// shards is divided (takeSeveral).
//
// While the database makes no decisions, TakeLocal decides, at a share of each limit for this process. The
// store of a proxy registers the process with a registry.Node.
package store

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"math/rand"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/store/registry"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// ErrOwes is the error of a request on a row that owes, see engine.ErrOwes.
var ErrOwes = engine.ErrOwes

// Store counts in Postgres, or at this process's shares of limits, and registers the process as a proxy. It
// implements ratelimit.Store, and has further methods for proxies.
type Store struct {
	db      pgdb.DB
	node    *registry.Node // nil for a Go program
	base    *engine.Store  // the engine of the database, with the database's Health
	options engine.Options
	routes  *routes         // nil if db cannot connect to other servers
	engines []*engine.Store // base, or one for each shard; set before base is ready

	closing context.Context // ends with Close
	stop    context.CancelFunc
	running sync.WaitGroup // counts the goroutine

	timeout int32 // the timeout of the last call, in milliseconds; atomic
	proxies int32 // the number of shares of each limit; atomic

	mu        sync.Mutex // guards the fields below, and the shares of rows
	closed    bool
	usesLocal bool // see UseLocal
	debts     map[*lease.State]*debt
	debtCount map[bool]int // the number of debts, by Limit.Durable
	repaying  bool         // a goroutine runs repay
	charging  int64        // units of charges in flight
	local     Local
}

// connector is a DB that can connect to other servers with the same database and account, such as a
// pgxdb.DB. At does not use the network.
type connector interface {
	At(host string, port int) (pgdb.DB, error)
}

// Open returns a store on db, without using the network. The store owns db: Close closes it. n describes the
// process for the registry of proxies; nil registers nothing. The error is a *ratelimit.FieldError for an
// option out of range or a nil db.
func Open(db pgdb.DB, o engine.Options, n *registry.Node) (*Store, error) {
	if o.Random == nil {
		o.Random = rand.Float64
	}
	s := &Store{db: db, node: n, proxies: 1, debts: map[*lease.State]*debt{},
		debtCount: map[bool]int{}, options: o}
	o.Discover = func(ctx context.Context) (bool, error) { return s.find(ctx) }
	var err error
	if s.base, err = engine.New(db, o); err != nil {
		return nil, err
	}
	if other, ok := db.(connector); ok {
		s.routes = &routes{db: db, connector: other, servers: map[string]pgdb.DB{}}
	}
	s.closing, s.stop = context.WithCancel(context.Background())
	if n != nil {
		s.running.Add(1)
		go s.run()
	}
	return s, nil
}

// find sets the engines, unless an earlier call has set them, and reports whether the counts are in shards.
// It implements engine.Options.Discover.
func (s *Store) find(ctx context.Context) (bool, error) {
	if len(s.engines) > 0 {
		return s.engines[0] != s.base, nil
	}
	sharded := false
	if s.routes != nil {
		var err error
		if sharded, err = s.routes.find(ctx, s.base.Health()); err != nil {
			return false, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return false, ratelimit.ErrClosed
	case !sharded:
		s.engines = append(s.engines, s.base)
		return false, nil
	}
	n := len(s.routes.schemas)
	var engines []*engine.Store
	for shard := 0; shard < n; shard++ {
		o := s.options
		o.Tables = s.routes.tables[shard]
		o.Shards = n
		//nolint:staticcheck // Yaegi does not convert an argument
		var db pgdb.DB = newShardDB(s.routes, shard)
		e, err := engine.New(db, o)
		if err != nil {
			return false, err
		}
		if s.usesLocal {
			lease.KeepStates(e.Leases())
		}
		engines = append(engines, e)
	}
	s.engines = engines
	return true, nil
}

// Prepare works in the background: it connects, finds the engines, and runs a migration if one is due.
// Without it, the first decision waits for this work.
func (s *Store) Prepare() { s.base.Prepare() }

// Ready reports whether the tables of counts exist in the current version.
func (s *Store) Ready() bool { return s.base.Ready() }

// await waits for up to timeout until the engines are found. While the database is silent, it fails
// immediately.
func (s *Store) await(ctx context.Context, timeout time.Duration) error {
	if s.base.Ready() {
		return nil
	}
	h := s.base.Health()
	if err := h.Unavailable(); err != nil {
		return err
	}
	if timeout <= 0 || h.Silent() {
		return ratelimit.ErrTimeout
	}
	err := s.base.Await(ctx, timeout)
	if err != nil && ctx.Err() != nil {
		return h.Ended(ctx)
	}
	return h.NoDecision(err, false)
}

// allEngines returns the engine of the database, and the engines of the shards.
func (s *Store) allEngines() []*engine.Store {
	engines := []*engine.Store{s.base}
	if s.Ready() && s.engines[0] != s.base {
		engines = append(engines, s.engines...)
	}
	return engines
}

// Engine returns the engine that counts for a subject, or nil before the engines are found.
func (s *Store) Engine(subject string) *engine.Store {
	if !s.base.Ready() {
		return nil
	}
	if len(s.engines) == 1 {
		return s.base
	}
	return s.engines[ShardOf(subject, len(s.engines))]
}

// ShardOf returns the shard of a subject: the first four bytes of its SHA-256, as a number, modulo shards. In
// SQL that is
//
//	('x' || left(encode(sha256(convert_to(subject, 'UTF8')), 'hex'), 8))::bit(32)::bigint % shards
func ShardOf(subject string, shards int) int {
	sum := sha256.Sum256([]byte(subject))
	return int(binary.BigEndian.Uint32(sum[:4]) % uint32(shards))
}

// severalShards is the result of commonShard for hits in different shards.
const severalShards = -1

// commonShard returns the shard of all hits of a call, or severalShards.
func (s *Store) commonShard(hits []ratelimit.Hit) int {
	shard := 0
	for i := range hits {
		if i > 0 && subjectOf(&hits[i]) == subjectOf(&hits[i-1]) {
			continue
		}
		next := s.shardOf(&hits[i])
		if i > 0 && next != shard {
			return severalShards
		}
		shard = next
	}
	return shard
}

// shardOf returns the shard of a hit.
func (s *Store) shardOf(h *ratelimit.Hit) int { return ShardOf(subjectOf(h), len(s.engines)) }

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
	if err := ratelimit.ValidateHits(hits, decisions); err != nil {
		return err
	}
	arrived := time.Now()
	atomic.StoreInt32(&s.timeout, int32(timeout/time.Millisecond))
	if err := s.await(ctx, timeout); err != nil {
		return err
	}
	shard := 0
	if len(s.engines) > 1 {
		if shard = s.commonShard(hits); shard == severalShards {
			return s.takeSeveral(ctx, arrived, timeout, hits, decisions)
		}
	}
	return s.engines[shard].Call(ctx, arrived, timeout, hits, decisions, false)
}

// Reset implements ratelimit.Store.
func (s *Store) Reset(ctx context.Context, timeout time.Duration, hits []ratelimit.Hit) error {
	for i := range hits {
		if hits[i].Limit == nil {
			return ratelimit.ValidateHits(hits[i:i+1], make([]ratelimit.Decision, 1))
		}
	}
	arrived := time.Now()
	if err := s.await(ctx, timeout); err != nil {
		return err
	}
	if shard := s.commonShard(hits); shard != severalShards {
		return s.engines[shard].Call(ctx, arrived, timeout, hits, nil, true)
	}
	parts := s.divide(hits)
	forEach(parts, func(part *shardHits) error {
		return s.engines[part.shard].Call(ctx, arrived, timeout, part.hits, nil, true)
	})
	for _, part := range parts {
		if part.err != nil {
			return part.err
		}
	}
	return nil
}

// Leases returns the rows that the engine of the database remembers. With shards there are none.
func (s *Store) Leases() *lease.Set { return s.base.Leases() }

// Health returns the health of the server of the database.
func (s *Store) Health() *health.Health { return s.base.Health() }

// Settle corrects a charge in the background.
func (s *Store) Settle(h *batch.Settlement) {
	subject := h.Subject
	if subject == "" {
		subject = h.Key
	}
	if e := s.Engine(subject); e != nil {
		e.Settle(h)
	}
}

// Unavailable returns nil if a shard can decide, and otherwise the error of one of the shards. See
// engine.Store.Unavailable.
func (s *Store) Unavailable() error {
	if !s.base.Ready() {
		return s.base.Unavailable()
	}
	var err error
	for _, e := range s.engines {
		if err = e.Unavailable(); err == nil {
			return nil
		}
	}
	return err
}

// Stats returns the sums of the engines' Stats.
func (s *Store) Stats() engine.Stats {
	sum := engine.NewStats()
	for _, e := range s.allEngines() {
		sum.Add(e.Stats())
	}
	return sum
}

// tickInterval is the mean time between two ticks. It varies by a quarter, so that proxies do not tick
// together.
const tickInterval = time.Second

// run registers the process, and ticks about once a second until Close.
func (s *Store) run() {
	defer s.running.Done()
	for s.closing.Err() == nil {
		interval := tickInterval
		if s.Ready() {
			err := batch.Try(func() error { return s.tick() })
			if s.closing.Err() == nil { // else Close interrupted it
				s.options.Report(err)
			}
		} else {
			interval /= 40 // the tables are about to be created
			if s.Local().On && s.Unavailable() == nil {
				s.base.Prepare() // perhaps no request comes that creates them
			}
		}
		health.Sleep(s.closing, time.Duration((0.75+s.options.Random()/2)*float64(interval)))
	}
}

// tick ends the time of local limits, renews the row in the registry, and checks in the
// background whether the engines' servers were restored or replaced.
func (s *Store) tick() error {
	for _, e := range s.allEngines() {
		e.Tick()
	}
	s.endLocal()
	return s.pollRegistry()
}

// pollRegistry renews the row in the registry if that is due, and counts the proxies.
func (s *Store) pollRegistry() error {
	proxies, err := s.node.Poll(s.closing, s.db, !s.options.DisableMigration, time.Now())
	if proxies > 0 {
		s.SetProxies(proxies)
	}
	return err
}

// SetApplied reports the changes of the policy that the process applies (see registry.Node.SetApplied). It
// writes them to the registry at once if that is due: commands that change the policy wait for it.
func (s *Store) SetApplied(applied, log string, problems []string) {
	s.node.SetApplied(applied, log, problems)
	if s.Ready() && s.node.Due(time.Now()) {
		s.options.Report(s.pollRegistry())
	}
}

// Close implements ratelimit.Store. It marks the process as ended in the registry. Calls in flight may finish
// for up to a second. Units of leases are refunded, which takes up to another second.
func (s *Store) Close() {
	s.mu.Lock()
	closed := s.closed
	s.closed = true
	s.mu.Unlock()
	if closed {
		return
	}
	s.stop()
	s.running.Wait()
	if s.node != nil {
		s.node.Leave(s.db)
	}
	var closing sync.WaitGroup
	engines := s.allEngines()
	for i := 1; i < len(engines); i++ {
		startClose(&closing, engines[i])
	}
	closing.Wait()
	if s.routes != nil {
		s.routes.close()
	}
	s.base.Close()
}

// startClose closes a store or a DB in the background and counts it in closing until it is closed.
func startClose(closing *sync.WaitGroup, c interface{ Close() }) {
	closing.Add(1)
	go func() {
		_ = batch.PanicError(func() { c.Close() })
		closing.Done()
	}()
}
