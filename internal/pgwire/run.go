package pgwire

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// The way of a statement through this package when all is well is Run, borrow,
// use, pipeline, appendStatement, fill, readAnswer, release. An interpreter pays
// for each function call, some for a method, and for each value that a function
// names or computes, whether it gets there or not. So these functions are
// plain and short, and call another one for everything unusual.

// rounds is how often a statement is sent at most. Each round but the last ended
// with the certainty that it did not run.
const rounds = 4

// distrust is how many times a pooler may lose our prepared statements before
// the pool stops naming them.
const distrust = 2

// outcome is what went wrong; nil is nothing.
type outcome struct {
	again []*ratelimit.Statement // these did not run, and may now
	err   error                  // what the whole call failed with
	sound bool                   // but the connection is not lost
	code  string                 // the SQLSTATE that came with err
	late  bool                   // the server still works on it
	lost  bool                   // the server did not have our prepared statements
}

// Run implements ratelimit.DB.
func (p *Pool) Run(ctx context.Context, statements []*ratelimit.Statement) error {
	if len(statements) == 0 {
		return nil
	}
	c := borrow(p, ctx)
	if c == nil {
		return runInRounds(p, ctx, statements, nil)
	}
	bad := use(p, ctx, c, statements, false)
	if bad == nil {
		return nil
	}
	return runInRounds(p, ctx, statements, bad)
}

// borrow takes an idle connection if there is one in good order. The caller
// then owns it.
func borrow(p *Pool, ctx context.Context) *conn {
	now := time.Since(p.born)
	p.mu.Lock()
	n := len(p.idle) - 1
	if n < 0 {
		p.mu.Unlock()
		return nil
	}
	c := p.idle[n]
	p.idle = p.idle[:n]
	p.mu.Unlock()
	c.lastUsed = now
	if now > c.freshUntil || now > c.expires || len(c.event) > 0 || ctx.Err() != nil {
		return doubtful(p, ctx, c)
	}
	return c
}

// use runs statements on a connection that it owns, and gives it back.
func use(p *Pool, ctx context.Context, c *conn, statements []*ratelimit.Statement, unnamed bool) *outcome {
	c.usable = false
	defer release(p, c) // also when a Row panics
	stop := context.AfterFunc(ctx, c.interrupt)
	bad := pipeline(ctx, c, statements, unnamed)
	c.usable = stop()
	if bad != nil {
		clearUp(p, c, bad)
	}
	return bad
}

// clearUp does what an outcome asks for.
func clearUp(p *Pool, c *conn, bad *outcome) {
	if bad.err != nil && !bad.sound {
		c.usable = false
	}
	if bad.late {
		p.cancel(c)
	}
	if bad.lost {
		p.distrust()
	}
}

// runInRounds runs statements after a first round, or without one.
func runInRounds(p *Pool, ctx context.Context, statements []*ratelimit.Statement, bad *outcome) error {
	unnamed := false
	round := 1
	if bad == nil {
		for _, st := range statements {
			st.Err = errPending
			st.Code = ""
		}
		bad = &outcome{again: statements}
		round = 0
	}
	for len(bad.again) > 0 && round < rounds && (ctx.Err() == nil || round == 0) {
		round++
		unnamed = unnamed || bad.lost
		left := bad.again
		c, none := p.acquire(ctx)
		if none != nil {
			bad = none
			bad.again = left
			break
		}
		bad = use(p, ctx, c, left, unnamed)
		if bad == nil {
			return nil
		}
	}
	if bad.err != nil {
		abandon(bad.again, bad.err, bad.code)
	}
	return bad.err // nil where each statement has its own
}

// errPending is in a statement until its outcome is known.
var errPending = errors.New("pgwire: not answered")

// abandon tells statements that their outcome is unknown, or that there will be none.
func abandon(statements []*ratelimit.Statement, err error, code string) {
	for _, st := range statements {
		st.Err = err
		st.Code = code
	}
}

// Exec implements ratelimit.DB. What the text changes in the session (SET, say)
// stays with one connection of the pool, whichever that is.
func (p *Pool) Exec(ctx context.Context, sql string) error {
	if strings.Contains(sql, "\x00") {
		return errors.New("pgwire: the SQL text holds a NUL byte")
	}
	for round := 1; ; round++ {
		c, bad := p.acquire(ctx)
		if bad != nil {
			return bad.err
		}
		// Since this is never run again, see first that the connection lives.
		if round < rounds && !check(ctx, c, healthTimeout) {
			p.drop(c, false)
			continue
		}
		if bad = useSimply(p, ctx, c, sql); bad != nil {
			return bad.err
		}
		return nil
	}
}

func useSimply(p *Pool, ctx context.Context, c *conn, sql string) *outcome {
	c.usable = false
	defer release(p, c)
	stop := context.AfterFunc(ctx, c.interrupt)
	bad := simple(ctx, c, sql)
	c.usable = stop()
	if bad != nil {
		clearUp(p, c, bad)
	}
	return bad
}

// distrust counts a pooler's loss of our prepared statements.
func (p *Pool) distrust() {
	p.mu.Lock()
	p.strikes++
	now := p.strikes == distrust
	p.unnamed = p.unnamed || now
	p.mu.Unlock()
	if now {
		p.o.Logger("the server loses prepared statements, as a transaction pooler does: from now on statements are sent without a name, which costs some speed")
	}
}
