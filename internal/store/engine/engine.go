package engine

import (
	"context"
	"hash/maphash"
	"math"
	"math/rand"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/store/ledger"
	"github.com/pgratelimit/pg-ratelimit/internal/store/process"
	"github.com/pgratelimit/pg-ratelimit/internal/store/slots"
	"github.com/pgratelimit/pg-ratelimit/internal/store/statement"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Options are the settings of an Engine. The zero value is a good choice.
type Options struct {
	// These fields are documented at postgres.Options.
	DisableMigration          bool
	CleanupProbability        float64
	Workers                   int
	DisableRememberedRefusals bool
	LeaseHorizon              time.Duration
	Now                       func() time.Time
	OnError                   func(error)

	// Log, if not nil, is called when a proxy begins to limit by itself, and when its limits are exact
	// again. It must not block.
	Log func(text string)

	LeaseHits int // the hits per horizon that give a key a lease; 0 is defaultLeaseHits
	// Tables maps the default names of tables to the tables to use; nil uses the default ones. With Tables,
	// the engine creates no tables.
	Tables map[string]statement.Table
	// Shards is the number of engines among which keys and maxRows are divided; 0 is 1.
	Shards int
	// Discover, unless it is nil, runs before the first decision, and again after the tables were dropped. It
	// reports whether the counts are in other engines: this one then decides nothing, and needs no tables.
	Discover func(ctx context.Context) (bool, error)
	// Notify, unless it is nil, is called with notices.
	Notify func(n *batch.Notice)
	// Upkeep, unless it is nil, makes the partitions of the ledger in the database, and that of a day, in
	// days since 1970. It runs if a settlement found none.
	Upkeep func(day int64) error
	// Lost, unless it is nil, is called for each settlement that may not have arrived.
	Lost func()
	// Leave, unless it is nil, is called by Close before it closes the database.
	Leave func()
	// Random and Hash replace rand.Float64 and the hash of keys in simulations; nil replaces nothing.
	Random func() float64
	Hash   func(seed maphash.Seed, key string) uint64
}

const (
	defaultWorkers = 4
	// maxRows bounds the rows that an engine remembers, see lease.Options.
	maxRows             = 20000
	defaultLeaseHorizon = time.Second
	// With 4, a quarter of 10,000 equally busy keys get a lease by chance, and requests take 1.05 times the
	// processor time of an exact limit (go run . -only 'Caddy.* 10,000 keys' in bench).
	defaultLeaseHits = 6
	defaultCleanup   = 0.1
)

// withDefaults returns the options with the default values, or a *ratelimit.FieldError.
func (o Options) withDefaults() (Options, error) {
	if p := o.CleanupProbability; math.IsNaN(p) || p > 1 {
		return o,
			&ratelimit.FieldError{Field: "CleanupProbability", Value: strconv.FormatFloat(p, 'g', -1, 64),
				Want: "from 0 to 1, or below 0 for no cleanup"}
	}
	if o.Workers < 0 {
		return o, &ratelimit.FieldError{Field: "Workers", Value: strconv.Itoa(o.Workers), Want: "0 or more"}
	}
	if o.LeaseHorizon < 0 {
		return o,
			&ratelimit.FieldError{Field: "LeaseHorizon", Value: o.LeaseHorizon.String(), Want: "0 or more"}
	}
	if o.Tables != nil {
		o.DisableMigration = true
	}
	if o.Shards == 0 {
		o.Shards = 1
	}
	if o.LeaseHorizon == 0 {
		o.LeaseHorizon = defaultLeaseHorizon
	}
	if o.LeaseHits == 0 {
		o.LeaseHits = defaultLeaseHits
	}
	if o.CleanupProbability == 0 {
		o.CleanupProbability = defaultCleanup
	}
	if o.Workers == 0 {
		o.Workers = defaultWorkers
	}
	if o.Random == nil {
		o.Random = rand.Float64
	}
	return o, nil
}

// Bounded is a DB with a bound on its connections.
type Bounded interface{ MaxConns() int }

// Engine counts in one database, or in one shard. All processes on it share its counts.
type Engine struct {
	*server
	cleaner     cleaner
	texts       *statement.Texts
	now         func() time.Time // Options.Now
	settleWait  time.Duration    // defaultSettleWait; tests change it
	slots       *slots.Slots
	ledger      *ledger.Ledger
	workers     int
	idleCalls   sync.Pool // unused calls
	idleBuffers sync.Pool // unused buffers of batches
	close       context.CancelFunc
	lost, leave func() // Options.Lost and Options.Leave
	ticking     int32  // 1 while Tick reads the identity of the server; atomic
	maintained  int32  // 1 after the start of maintainLeases; atomic
	closed      int32  // 1 after Close; atomic

	mu        sync.Mutex                // guards the fields below
	byTimeout map[queueKey]*batch.Queue // the queues of Call
	queues    []*batch.Queue            // all queues
}

// New returns an engine on db, and closes db in its Close. It does not use the network yet. The error is a
// *ratelimit.FieldError if an option is out of range or db is nil.
func New(db pgdb.DB, options Options) (*Engine, error) {
	if db == nil {
		return nil, &ratelimit.FieldError{Field: "db", Want: "a DB, such as pgxdb.Open returns"}
	}
	o, err := options.withDefaults()
	if err != nil {
		return nil, err
	}
	if b, ok := db.(Bounded); ok && b.MaxConns() < o.Workers {
		o.Workers = b.MaxConns() // while a batch waits for a connection, its queue continues to collect calls
	}
	closing, cancel := context.WithCancel(context.Background())
	texts := statement.New(o.Tables)
	server := &server{db: db, closing: closing, report: o.Report, stats: NewStats(), discover: o.Discover,
		migrates: !o.DisableMigration, creation: &health.Creation{}}
	server.health = health.New(closing, o.Random, server.ping)
	if o.DisableMigration && o.Discover == nil {
		server.ready = 1
	}
	e := &Engine{
		server: server, texts: texts, settleWait: defaultSettleWait, now: o.Now,
		cleaner: cleaner{probability: o.CleanupProbability, random: o.Random},
		workers: o.Workers, close: cancel, lost: o.Lost, leave: o.Leave,
		byTimeout: map[queueKey]*batch.Queue{},
	}
	server.rows = lease.New(lease.Options{Max: maxRows / o.Shards, Refusals: !o.DisableRememberedRefusals,
		Horizon: o.LeaseHorizon, MinHits: o.LeaseHits, Hash: o.Hash})
	e.openLanes() // needs no mutex, because no other goroutine has e yet
	holds := process.Options{
		Closing: closing, Health: server.health, DB: db, Texts: texts, Report: o.Report, Run: server.run,
		Send: func(c *batch.Call) { batch.Send(e.lanes[laneOf(c.Hits)].queue, c, time.Now()) },
	}
	e.slots = slots.New(holds, func(j *batch.Job) { e.addJob(j, 0) })
	e.ledger = ledger.New(ledger.Options{Options: holds, Rows: e.rows, Write: e.writeSettlements,
		Upkeep: o.Upkeep, Notify: o.Notify, Settled: e.settled, Now: e.unixNow})
	server.onReplaced = e.ledger.MarkUncertain
	e.idleCalls.New = func() any { return batch.NewCall() }
	e.idleBuffers.New = func() any { return &buffers{} }
	return e, nil
}

// Report passes a failure to OnError, unless it is nil. A panic of OnError does not end the program.
func (o Options) Report(err error) {
	if o.OnError != nil && err != nil {
		_ = batch.PanicError(func() { o.OnError(err) })
	}
}

// Health returns the health of the server.
func (e *Engine) Health() *health.Health { return e.health }

// Unavailable returns an error that wraps ratelimit.ErrUnavailable while the database makes no decisions, and
// nil otherwise. Only a request detects that the database has stopped answering.
func (e *Engine) Unavailable() error { return e.health.Unavailable() }

// Call decides hits as ratelimit.Store.Take, or with reset as ratelimit.Store.Reset: from memory, or in a
// batch. arrived is the time from which health.Health.Patience counts. The hits must be valid, and decisions
// as long as hits; a reset needs no decisions.
func (e *Engine) Call(ctx context.Context, arrived time.Time, timeout time.Duration, hits []ratelimit.Hit,
	decisions []ratelimit.Decision, reset bool) error {
	if ctx.Err() != nil {
		return e.health.Ended(ctx) // nothing is charged
	}
	c := e.idleCalls.Get().(*batch.Call)
	c.Prepare(hits, reset)
	unavailable := e.unavailable(timeout)
	reusable := true
	var err error
	switch {
	case decideFromMemory(e, []*batch.Call{c}, unavailable) > 0:
		err = c.Err
	case unavailable != nil:
		err = unavailable
	default:
		reusable, err = batch.Enter(ctx, e.queueFor(timeout, laneOf(hits)), c, arrived)
	}
	if err == nil {
		copy(decisions, c.Decisions)
	}
	if reusable {
		// A key may be a part of a long request, and would keep it in memory.
		for i := range c.Hits {
			c.Hits[i].Key = ""
			c.Hits[i].Subject = ""
			c.Hits[i].Hold = nil
		}
		e.idleCalls.Put(c)
	}
	return err
}

// Held returns the number of slots of a row that the requests of this process hold, including those of
// AcquireLocal.
func (e *Engine) Held(row lease.RowID) int64 { return e.slots.CountRow(row) }

// AcquireLocal counts the slots or the units of a hit that was admitted without the database, until its Hold
// is released. The database holds the units once it answers.
func (e *Engine) AcquireLocal(row lease.RowID, h *ratelimit.Hit) {
	if h.Limit.Reserves {
		e.ledger.Acquire(0, h, row)
	} else {
		e.slots.AcquireLocal(row, h)
	}
}

// Ledger returns the ledger of the engine.
func (e *Engine) Ledger() *ledger.Ledger { return e.ledger }

// unixNow returns Options.Now in Unix microseconds, or 0 for the clock of the server.
func (e *Engine) unixNow() int64 {
	if e.now == nil {
		return 0
	}
	return e.now().UnixMicro()
}

// closeTimeout bounds the flush of jobs in Close, and each batch without requests.
const closeTimeout = time.Second

// Close implements ratelimit.Store. It waits up to a second for calls in flight, and up to another second for
// the refund of leased units.
func (e *Engine) Close() {
	if !atomic.CompareAndSwapInt32(&e.closed, 0, 1) {
		return
	}
	for until := time.Now().Add(time.Second); time.Now().Before(until); time.Sleep(time.Millisecond) {
		if !e.isBusy() {
			break
		}
	}
	lease.EndAll(e.rows)
	e.refundLeases()
	e.Flush()
	e.refundLeases() // the units of charges that were sent since EndAll
	e.Flush()
	e.ledger.Close()
	e.slots.Name.End()
	e.close()
	for _, l := range e.lanes {
		batch.Close(l.backlog)
	}
	if e.leave != nil {
		e.leave()
	}
	e.db.Close()
}

// Flush sends the jobs that wait, unless the database is unavailable or takes too long.
func (e *Engine) Flush() {
	flushed := time.Now().Add(closeTimeout)
	for _, l := range e.lanes {
		batch.Flush(l.backlog, time.Until(flushed))
		for batch.Busy(l.queue) && time.Now().Before(flushed) {
			time.Sleep(time.Millisecond) // a batch may have taken jobs before
		}
	}
}

// isBusy reports whether any worker is busy.
func (e *Engine) isBusy() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, q := range e.queues {
		if batch.Busy(q) {
			return true
		}
	}
	return false
}
