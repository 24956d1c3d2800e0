package ratelimit

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
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

	mu        sync.Mutex
	closed    bool
	lanes     map[time.Duration]*lane
	cleaning  bool
	migrated  bool
	migration chan struct{} // closed at the end of the one under way; or nil
	failure   error         // of the last migration
	health    health
}

// NewPostgres returns a store on db, and closes db in its Close. It does not
// touch the network yet.
func NewPostgres(db DB, o PostgresOptions) *Postgres {
	if o.CleanupProbability == 0 {
		o.CleanupProbability = 0.1
	}
	if o.Flights <= 0 {
		o.Flights = 4
	}
	return &Postgres{db: db, o: o, texts: newStatements(), lanes: map[time.Duration]*lane{}, migrated: o.DisableMigration}
}

// Take implements Store. timeout is for the whole decision.
func (p *Postgres) Take(ctx context.Context, timeout time.Duration, hits []Hit, decisions []Decision) error {
	return p.call(ctx, timeout, hits, decisions, false)
}

// Reset implements Store.
func (p *Postgres) Reset(ctx context.Context, timeout time.Duration, hits []Hit) error {
	return p.call(ctx, timeout, hits, nil, true)
}

// call sends hits through a batch.
func (p *Postgres) call(ctx context.Context, timeout time.Duration, hits []Hit, decisions []Decision, reset bool) error {
	lane, err := p.lane(timeout)
	if err != nil {
		return err
	}
	c := &call{reset: reset}
	c.hits = append(c.hits, hits...)
	for i := range c.hits {
		c.hits[i].Key = c.hits[i].storedKey()
	}
	if ctx.Done() != nil {
		stop := context.AfterFunc(ctx, func() { lane.settle(c, context.Cause(ctx)) })
		defer stop()
	}
	lane.submit(c)
	copy(decisions, c.decisions)
	return c.err
}

// lane returns the queue for a timeout, unless no decision can be had.
func (p *Postgres) lane(timeout time.Duration) (*lane, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, ErrClosed
	}
	if p.health.down(time.Now()) {
		return nil, ErrUnavailable
	}
	l := p.lanes[timeout]
	if l == nil {
		l = &lane{timeout: timeout, flights: p.o.Flights}
		l.run = func(calls []*call, deadline time.Time) []*call { return p.run(l, calls, deadline) }
		p.lanes[timeout] = l
	}
	return l, nil
}

// run decides a batch: one pipeline of statements. It returns the calls that
// belong in the next batch.
func (p *Postgres) run(l *lane, calls []*call, deadline time.Time) []*call {
	ctx, cancel := context.WithDeadline(context.Background(), deadline)
	defer cancel()
	err := p.prepare(ctx)
	plan := newPlan()
	if err == nil {
		for _, c := range calls {
			plan.add(c)
		}
		now := int64(0)
		if p.o.Now != nil {
			now = p.o.Now()
		}
		err = p.execute(ctx, plan.statements(p.texts, now))
	}
	if err != nil {
		err = p.explain(ctx, err)
		for _, c := range calls {
			if c.internal {
				p.report(fmt.Errorf("giving back what refused requests were charged: %w", err))
			}
			l.settle(c, err)
		}
		return nil
	}
	plan.close()
	p.cleanUp(plan)
	return l.conclude(calls, p.report)
}

// execute runs the statements, and once more those that lost against another
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
		if attempt == 3 {
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

// cleanUp deletes expired rows now and then, in the background, one at a time.
func (p *Postgres) cleanUp(plan *plan) {
	var due []*Statement
	for _, wave := range plan.waves {
		for _, g := range wave {
			if g.kind == take && rand.Float64() < p.o.CleanupProbability {
				due = append(due, g.cleanup(p.texts, plan.now)...)
			}
		}
	}
	if len(due) == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cleaning || p.closed {
		return
	}
	p.cleaning = true
	go p.cleanUpNow(due)
}

// cleanupRounds bounds what one cleanup deletes, in statements of 1,000 rows.
const cleanupRounds = 100

func (p *Postgres) cleanUpNow(due []*Statement) {
	defer func() {
		if r := recover(); r != nil {
			p.report(panicError(r))
		}
		p.mu.Lock()
		p.cleaning = false
		p.mu.Unlock()
	}()
	for round := 0; round < cleanupRounds && len(due) > 0; round++ {
		more := due[:0:0]
		for _, s := range due {
			gone := int64(0)
			s.Row = func(columns [][]byte) error {
				gone = bigint(columns[0])
				return nil
			}
			ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
			err := p.db.Run(ctx, []*Statement{s})
			cancel()
			if err == nil {
				err = s.Err
			}
			if err != nil {
				p.report(fmt.Errorf("deleting expired rows: %w", err))
				return
			}
			if gone >= cleanupRows {
				more = append(more, s)
			}
		}
		due = more
	}
}

// Close implements Store. Calls under way fail or finish.
func (p *Postgres) Close() {
	p.mu.Lock()
	closed := p.closed
	p.closed = true
	p.mu.Unlock()
	if !closed {
		p.db.Close()
	}
}

func (p *Postgres) report(err error) {
	if p.o.Report != nil && err != nil {
		p.o.Report(err)
	}
}

// panicError is a panic as an error.
func panicError(p any) error { return fmt.Errorf("ratelimit: panic: %v", p) }
