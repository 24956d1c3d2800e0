package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// PostgresOptions are the settings of a Postgres store. The zero value is a
// good choice.
type PostgresOptions struct {
	// DisableMigration leaves it to you to run TableSQL.
	DisableMigration bool

	// CleanupProbability is how likely a statement is followed by the deletion
	// of up to 1,000 expired rows of its prefixes, off the requests' path: from
	// 0 to 1. 0 means 0.1; below 0 turns it off.
	CleanupProbability float64

	// Flights is how many batches may be under way at once, each on its own
	// connection; there is one as long as the database answers within
	// milliseconds. 0 means 4.
	Flights int

	// MaxBlockedKeys bounds the rows that this process knows to be used up, and
	// refuses without asking the database. 0 means 10,000; below 0 asks always.
	MaxBlockedKeys int

	// Now replaces the server's clock: microseconds since the Unix epoch. For
	// tests; nil is the server's clock.
	Now func() int64

	// Report is told of failures that no caller sees: of a migration, of a
	// cleanup, of giving back what a refused request was charged. Nil drops them.
	Report func(error)
}

// Postgres is a Store whose counts all processes on one database share.
type Postgres struct {
	db    DB
	o     PostgresOptions
	texts *statements

	idle    sync.Pool // of calls
	blocked *blocked  // nil if every hit is to be asked about
	clears  *clears
	held    *held
	stats   Stats // guarded by mu

	mu        sync.Mutex
	closed    bool
	queues    map[time.Duration]*Queue // of Take and Reset
	more      []*Queue                 // made by NewQueue
	cleaning  bool
	migrated  bool
	migration context.Context // ends with the one under way; or nil
	failure   error           // of the last migration
	health    health
}

// DefaultBlockedKeys is how many used-up keys a Postgres store remembers.
const DefaultBlockedKeys = 10000

// NewPostgres returns a store on db, and closes db in its Close. It does not
// touch the network yet.
func NewPostgres(db DB, o PostgresOptions) *Postgres {
	if o.CleanupProbability == 0 {
		o.CleanupProbability = 0.1
	}
	if o.Flights <= 0 {
		o.Flights = 4
	}
	p := &Postgres{db: db, o: o, texts: newStatements(), queues: map[time.Duration]*Queue{}, migrated: o.DisableMigration, clears: newClears()}
	p.idle.New = func() any { return NewCall() }
	if o.MaxBlockedKeys == 0 {
		o.MaxBlockedKeys = DefaultBlockedKeys
	}
	if o.MaxBlockedKeys > 0 {
		p.blocked = newBlocked(o.MaxBlockedKeys, p.clears)
	}
	p.held = &held{clears: p.clears, blocked: p.blocked}
	return p
}

// Take implements Store. timeout is for the whole decision.
func (p *Postgres) Take(ctx context.Context, timeout time.Duration, hits []Hit, decisions []Decision) error {
	return ask(p, ctx, timeout, hits, decisions, false)
}

// Reset implements Store.
func (p *Postgres) Reset(ctx context.Context, timeout time.Duration, hits []Hit) error {
	return ask(p, ctx, timeout, hits, nil, true)
}

// ask sends hits through a batch, unless it is known already that they do not
// fit.
func ask(p *Postgres, ctx context.Context, timeout time.Duration, hits []Hit, decisions []Decision, reset bool) error {
	q, err := p.queue(timeout)
	if err != nil {
		return err
	}
	c := p.newCall(hits, reset)
	if c.gives || ctx.Done() != nil || anyBlocked(p.blocked) {
		return askCarefully(p, ctx, q, c, decisions)
	}
	Enter(q, c)
	return outcome(p, c, decisions)
}

// outcome hands a call's decisions over, and the call to the next request.
func outcome(p *Postgres, c *Call, decisions []Decision) error {
	err := c.Err
	if err == nil {
		copy(decisions, c.Decisions)
	}
	p.idle.Put(c)
	return err
}

// askCarefully is the rest of ask for a call that ctx may end, that gives quota
// back, or that may be known not to fit.
func askCarefully(p *Postgres, ctx context.Context, q *Queue, c *Call, decisions []Decision) error {
	if ctx.Err() != nil {
		p.idle.Put(c)
		return context.Cause(ctx) // nothing is charged
	}
	if p.blocked != nil && refuse(p, c, decisions) {
		p.idle.Put(c)
		return nil
	}
	c.cancellable = ctx.Done() != nil
	stop := context.AfterFunc(ctx, func() { forsake(c, context.Cause(ctx)) })
	if c.cancellable && len(q.calls) > queueRoom/2 {
		go enqueue(q, c) // it may be full, and ctx is to free the caller all the same
	} else {
		enqueue(q, c)
	}
	<-c.done
	stopped := stop()
	if c.gives {
		p.clearGiven(c)
	}
	if stopped {
		return outcome(p, c, decisions)
	}
	// ctx has ended the wait, or is about to, and the call may still be in a
	// batch: it is not to be used again.
	if c.Err == nil {
		copy(decisions, c.Decisions)
	}
	return c.Err
}

// clearGiven forgets that rows were used up to which a call gave quota back: a
// refusal from before may have been noted meanwhile.
func (p *Postgres) clearGiven(c *Call) {
	for i := range c.Hits {
		if c.reset || c.Hits[i].Cost < 0 {
			p.held.clear(rowOf(&c.Hits[i]))
		}
	}
}

// refuse decides a call by the blocked rows, if one of its hits is among them.
// Hits that give quota back clear theirs.
func refuse(p *Postgres, c *Call, decisions []Decision) bool {
	if c.gives {
		p.clearGiven(c)
		return false // it gives back in any case
	}
	now := p.blocked.clock()
	for i := range c.Hits {
		h := &c.Hits[i]
		if h.Cost <= 0 || h.Peek || c.reset {
			continue
		}
		d, known := refuses(p.blocked, rowOf(h), h.Limit, h.Cost, now)
		if !known {
			continue
		}
		for j := range decisions {
			decisions[j] = Decision{Allowed: true, Limit: capacity(c.Hits[j].Limit), Source: Undecided}
		}
		decisions[i] = d
		p.mu.Lock()
		p.stats.Blocked++
		p.mu.Unlock()
		return true
	}
	return false
}

// queue returns the queue for a timeout, unless no decision can be had.
func (p *Postgres) queue(timeout time.Duration) (*Queue, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.unavailable(); err != nil {
		return nil, err
	}
	q := p.queues[timeout]
	if q == nil {
		if len(p.queues) >= maxQueues {
			p.forgetQueues()
		}
		q = p.newQueue(timeout)
		p.queues[timeout] = q
	}
	return q, nil
}

// maxQueues is how many timeouts have a queue each at hand: a program has one or
// two, unless it works each out from a deadline.
const maxQueues = 16

// forgetQueues makes room for others where nothing is under way. Whoever is about
// to use one still can. The caller holds the mutex.
func (p *Postgres) forgetQueues() {
	for timeout, q := range p.queues {
		if !flying(q) {
			delete(p.queues, timeout)
		}
	}
}

// unavailable says why no decision can be had, or nil. The caller holds the mutex.
func (p *Postgres) unavailable() error {
	if p.closed {
		return ErrClosed
	}
	if p.health.pause > 0 {
		now := time.Now()
		if p.health.down(now) {
			return ErrUnavailable
		}
		p.health.until = now.Add(p.health.pause) // this one asks, and the others see what comes of it
	}
	return nil
}

func (p *Postgres) newQueue(timeout time.Duration) *Queue {
	q := &Queue{timeout: timeout, flights: p.o.Flights, calls: make(chan *Call, queueRoom), held: p.held}
	q.run = func(f *flight, calls []*Call, deadline time.Time) []*Call { return p.run(q, f, calls, deadline) }
	return q
}

// run decides a batch: one pipeline of statements. It returns the calls that
// belong in the next batch.
func (p *Postgres) run(q *Queue, f *flight, calls []*Call, deadline time.Time) []*Call {
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	plan := newPlan()
	began := p.clears.begin()
	err := p.prepare(ctx)
	if err == nil {
		addCalls(plan, calls)
		f.holder = p.held.setOut(plan)
		now := int64(0)
		if p.o.Now != nil {
			now = p.o.Now()
		}
		statements := plan.write(p.texts, now)
		p.count(calls, len(statements))
		err = p.execute(ctx, statements)
		if err == nil {
			if apart := plan.takeApart(p.texts, now); len(apart) > 0 {
				p.count(nil, len(apart))
				err = p.execute(ctx, apart)
			}
		}
	}
	if err != nil {
		p.fail(q, calls, p.explain(ctx, err))
		return nil
	}
	plan.close()
	p.cleanUp(plan)
	again := p.conclude(q, f, calls, deadline, began)
	plan.free()
	return again
}

// fail ends the calls of a batch of which nothing is known.
func (p *Postgres) fail(q *Queue, calls []*Call, err error) {
	p.mu.Lock()
	p.stats.Failures++
	closed := p.closed
	p.mu.Unlock()
	for _, c := range calls {
		if c.gives {
			p.clearGiven(c) // it may have been given back
		}
		if c.internal && !closed {
			p.report(fmt.Errorf("giving back what refused requests were charged: %w", err))
		}
	}
	fail(q, calls, err)
}

// maxLosses bounds how often a statement may lose. Whenever it does, another has
// won, so all get on.
const maxLosses = 20

// execute runs the statements, and again those that lost against another
// transaction and so did nothing: it needs a database whose default is a
// stricter isolation than READ COMMITTED, or somebody else's locks.
func (p *Postgres) execute(ctx context.Context, statements []*Statement) error {
	for attempt := 0; len(statements) > 0; attempt++ {
		err := p.db.Run(ctx, statements)
		p.mu.Lock()
		p.health.note(err, time.Now())
		p.mu.Unlock()
		if err != nil {
			return err
		}
		var lost []*Statement
		for _, s := range statements {
			switch s.Code {
			case serializationFailure, deadlockDetected:
				lost = append(lost, s)
			case undefinedTable, undefinedColumn:
				p.mu.Lock()
				p.migrated = p.o.DisableMigration // somebody dropped them
				p.mu.Unlock()
			}
		}
		if attempt == maxLosses {
			return nil
		}
		statements = lost
	}
	return nil
}

// explain turns the end of a batch's time into ErrTimeout.
func (p *Postgres) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) {
		return ErrTimeout
	}
	return err
}

// Close implements Store. Calls under way may finish, within a second: so what
// refused requests were charged is given back.
func (p *Postgres) Close() {
	p.mu.Lock()
	closed := p.closed
	p.closed = true
	p.mu.Unlock()
	if closed {
		return
	}
	for until := time.Now().Add(time.Second); p.flying() && time.Now().Before(until); {
		time.Sleep(time.Millisecond)
	}
	p.db.Close()
}

// flying reports whether a batch is under way.
func (p *Postgres) flying() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, q := range p.queues {
		if flying(q) {
			return true
		}
	}
	for _, q := range p.more {
		if flying(q) {
			return true
		}
	}
	return false
}

func (p *Postgres) report(err error) {
	if p.o.Report == nil || err == nil {
		return
	}
	// Whoever listens must not end the program: it may be a proxy.
	defer func() { _ = recover() }()
	p.o.Report(err)
}

// panicError is a panic as an error.
func panicError(p any) error { return fmt.Errorf("ratelimit: panic: %v", p) }
