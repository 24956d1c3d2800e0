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
//
// The files, from the top down: store.go, queue.go, several.go, refused.go, upkeep.go, notices.go,
// local.go, local_charge.go, engines.go, db.go, routes.go.
package store

import (
	"context"
	"math/rand"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
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
	base    *engine.Engine // the engine of the database, with the database's Health
	options engine.Options
	routes  *routes          // nil if db cannot connect to other servers
	engines []*engine.Engine // base, or one for each shard; set before found

	closing context.Context // ends with Close
	stop    context.CancelFunc
	running sync.WaitGroup // counts the goroutines
	// sole holds a value while the heartbeat or the upkeep uses a connection. It is nil if db has more than
	// two.
	sole chan struct{}

	keptAt    time.Time // the time of the last upkeep of the ledger; only upkeep uses it
	summedAt  time.Time // the time when all days of the ledger were summed; only sumLedger uses it
	lostAfter time.Time // the time of the next look for killed processes; only reportLost uses it
	notices   notices
	timeout   int32 // the timeout of the last call, in milliseconds; atomic
	proxies   int32 // the number of shares of each limit; atomic
	found     int32 // 1 once the engines are set; atomic

	mu        sync.Mutex // guards the fields below, and the shares of rows
	closed    bool
	endPause  func() // ends the pause of the heartbeat; nil before the first
	usesLocal bool   // see UseLocal
	debts     map[*lease.LocalCounter]*debt
	debtCount map[bool]int  // the number of debts, by Limit.Durable
	repaying  bool          // a goroutine runs repay
	charging  int64         // units of charges in flight
	early     []*batch.Bill // those that came before the store was ready
	lost      int64         // the units that killed processes held, see reportLost
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
	s := &Store{db: db, node: n, proxies: 1, debts: map[*lease.LocalCounter]*debt{},
		debtCount: map[bool]int{}}
	if n != nil {
		o.Notify = s.Notify
		o.Lost = n.Lose
	}
	s.keptAt = time.Now().Add(-time.Duration(o.Random() * float64(upkeepInterval))) // not all proxies at once
	s.summedAt = s.keptAt
	o.Upkeep = func(day int64) error { return s.keepLedger(schema.LedgerUpkeepOf, day) }
	s.options = o // the shards have no options that follow
	o.Discover = func(ctx context.Context) (bool, error) { return s.findEngines(ctx) }
	if n != nil {
		o.Leave = func() { n.Leave(db) }
	}
	var err error
	if s.base, err = engine.New(db, o); err != nil {
		return nil, err
	}
	if other, ok := db.(connector); ok {
		s.routes = &routes{db: db, connector: other, servers: map[string]pgdb.DB{}}
	}
	if b, ok := db.(engine.Bounded); ok && b.MaxConns() <= 2 {
		s.sole = make(chan struct{}, 1)
	}
	s.closing, s.stop = context.WithCancel(context.Background())
	if n != nil {
		s.running.Add(4)
		go s.run(s.tick, false)
		go s.run(s.pollRegistry, true)
		go s.run(s.upkeep, false)
		go s.run(s.sumLedger, false)
	}
	return s, nil
}

// Take implements ratelimit.Store.
func (s *Store) Take(ctx context.Context, timeout time.Duration, hits []ratelimit.Hit,
	decisions []ratelimit.Decision) error {
	if err := ratelimit.ValidateHits(hits, decisions); err != nil {
		return err
	}
	atomic.StoreInt32(&s.timeout, int32(timeout/time.Millisecond))
	if err := s.await(ctx, timeout); err != nil {
		return err
	}
	arrived := time.Now()
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
	if err := s.await(ctx, timeout); err != nil {
		return err
	}
	arrived := time.Now()
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

// Rows returns the rows that the engine of the database remembers. With shards there are none.
func (s *Store) Rows() *lease.Set { return s.base.Rows() }

// Health returns the health of the server of the database.
func (s *Store) Health() *health.Health { return s.base.Health() }

// Flush sends what waits in a process that ends. Settlements for which the database is unavailable or takes
// too long are lost.
func (s *Store) Flush() {
	if s.Ready() {
		_ = s.tick()
	}
	s.Lose(len(s.takeEarly()))
	for _, e := range s.allEngines() {
		e.Flush()
		e.Ledger().Flush()
		s.Lose(e.Ledger().Unsettled())
	}
}

// Lose counts and reports n requests that are not settled.
func (s *Store) Lose(n int) { s.base.Ledger().Lose(n) }

// engineOf returns the engine of a row, as Engine does. "" as the subject means the key.
func (s *Store) engineOf(subject, key string) *engine.Engine {
	if subject == "" {
		subject = key
	}
	return s.Engine(subject)
}

// Settle settles requests in the background, and ends their holds. Each shard settles its part.
func (s *Store) Settle(bills ...*batch.Bill) {
	if atomic.LoadInt32(&s.found) == 0 { // the shards are not known yet, and have made no charge
		for _, one := range bills {
			s.settleEarly(one)
		}
		return
	}
	all := map[*engine.Engine][]*batch.Bill{}
	for _, one := range bills {
		parts := map[*engine.Engine]*batch.Bill{}
		for i := range one.Charges {
			c := &one.Charges[i]
			e := s.engines[0]
			if len(s.engines) > 1 {
				e = s.engineOf(c.Subject, c.Key)
			}
			if !c.Limit.Reserves {
				e.Adjust(c)
				continue
			}
			part := parts[e]
			if part == nil {
				p := *one
				p.Charges = nil
				p.Lines = append([]batch.Line(nil), one.Lines...) // each ledger owns its part
				p.Ancestors = append([]string(nil), one.Ancestors...)
				part = &p
				parts[e] = part
				all[e] = append(all[e], part)
			}
			part.Charges = append(part.Charges, *c)
		}
	}
	s.settleLocal(bills)
	for e, parts := range all {
		e.Ledger().Settle(parts...)
	}
}

// settleEarly keeps a settlement until the shards are known.
func (s *Store) settleEarly(one *batch.Bill) {
	if one.ID == "" {
		return
	}
	s.mu.Lock()
	lost := s.closed || len(s.early) >= maxDebts
	if !lost {
		s.early = append(s.early, one)
	}
	s.mu.Unlock()
	if lost {
		s.Lose(1)
	}
}

// Stats returns the sums of the engines' Stats.
func (s *Store) Stats() engine.Stats {
	sum := engine.NewStats()
	for _, e := range s.allEngines() {
		sum.Add(e.Stats())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sum[engine.LostUnits] = s.lost
	return sum
}

// tickInterval is the mean time between two ticks. It varies by a quarter, so that proxies do not tick
// together.
const tickInterval = time.Second

// run does a part of the background work about once a second, until Close. beats is set for the heartbeat.
func (s *Store) run(work func() error, beats bool) {
	defer s.running.Done()
	for s.closing.Err() == nil {
		interval := tickInterval
		if !s.Ready() {
			interval /= 40 // the tables are about to be created
		}
		pause, end := context.WithTimeout(s.closing,
			time.Duration((0.75+s.options.Random()/2)*float64(interval)))
		if beats {
			s.node.SetRefused(s.Unavailable())
			s.mu.Lock()
			s.endPause = end
			s.mu.Unlock()
		}
		if s.Ready() {
			err := batch.Try(work)
			if s.closing.Err() == nil { // else Close interrupted it
				s.options.Report(err)
			}
		} else if s.Local().On && s.Unavailable() == nil {
			s.base.Prepare() // perhaps no request comes that creates them
		}
		<-pause.Done()
		end()
	}
}

// tick ends local limits once those of the database are exact again, and checks in the background whether the
// engines' servers were restored or replaced. It does not wait for the database.
func (s *Store) tick() error {
	for _, e := range s.allEngines() {
		e.Tick()
	}
	s.endLocal()
	for _, one := range s.takeEarly() {
		s.Settle(one)
	}
	return nil
}

// takeEarly removes and returns the bills that came before the engines were found.
func (s *Store) takeEarly() []*batch.Bill {
	s.mu.Lock()
	defer s.mu.Unlock()
	early := s.early
	s.early = nil
	return early
}

// pollRegistry renews the row in the registry if that is due, and counts the proxies.
func (s *Store) pollRegistry() error {
	if s.sole != nil {
		s.sole <- struct{}{}
		defer func() { <-s.sole }()
	}
	proxies, err := s.node.Poll(s.closing, s.db, time.Now())
	if proxies > 0 {
		s.SetProxies(proxies)
	}
	return err
}

// SetApplied reports the changes of the policy that the process applies (see registry.Node.SetApplied). The
// heartbeat writes them to the registry at once if that is due: commands that change the policy wait for it.
func (s *Store) SetApplied(applied, log string, problems []string) {
	s.node.SetApplied(applied, log, problems)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.endPause != nil && s.node.Due(time.Now()) {
		s.endPause()
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
	for _, one := range s.takeEarly() {
		s.Settle(one)
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
