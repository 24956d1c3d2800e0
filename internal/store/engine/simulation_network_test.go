package engine_test

import (
	"context"
	"errors"
	"math"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// chance is a source of random numbers without a state. A number depends on the seed and its purpose, not on
// the order of goroutines.
type chance uint64

// with returns the chance for the purpose that numbers identify.
func (c chance) with(numbers ...int64) chance {
	x := uint64(c)
	for _, n := range numbers { // splitmix64
		x += uint64(n) + 0x9e3779b97f4a7c15
		x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
		x = (x ^ x>>27) * 0x94d049bb133111eb
		x ^= x >> 31
	}
	return chance(x)
}

// withText returns the chance for the purpose that s identifies.
func (c chance) withText(s string) chance {
	x := uint64(14695981039346656037) // FNV-1a
	for i := range len(s) {
		x = (x ^ uint64(s[i])) * 1099511628211
	}
	return c.with(int64(x))
}

// intn returns a number from 0 to n-1.
func (c chance) intn(n int64) int64 { return int64(uint64(c.with(1)) % uint64(n)) }

// float returns a number from 0 to 1.
func (c chance) float() float64 { return float64(uint64(c.with(2))>>11) / (1 << 53) }

// duration returns a random time with an exponential distribution.
func (c chance) duration(mean time.Duration) time.Duration {
	return time.Duration(-math.Log(1-c.float())*float64(mean)) + 1
}

// simBorn is the time at which bubbles of synctest start.
var simBorn = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

// simSince returns the time of the simulation in nanoseconds.
func simSince() int64 { return int64(time.Since(simBorn)) }

// simDB is a proxy's connection to the server.
type simDB struct {
	server     *simServer
	plan       *simPlan
	proxy      int
	chance     chance
	minLatency time.Duration // the minimum latency of a message, one way
	dead       atomic.Bool   // the proxy was killed
}

var (
	errSimReset   = errors.New("connection reset by peer")
	errSimRefused = errors.New("connection refused")
)

func (d *simDB) Run(ctx context.Context, timeout time.Duration, statements []*pgdb.Statement) error {
	return untilTimeout(ctx, timeout, func(ctx context.Context) error { return d.run(ctx, statements) })
}

// run sends a message and waits for the results. The fate of a message depends on its content and time, so
// that runs with the same messages are equal.
func (d *simDB) run(ctx context.Context, statements []*pgdb.Statement) error {
	message := make([]simStatement, 0, len(statements))
	sent := simSince()
	if d.dead.Load() {
		sleepUntil(ctx, sent+int64(time.Second))
		return errSimRefused
	}
	c := d.chance.with(sent)
	for _, s := range statements {
		s.Result, s.Rows, s.Err, s.Code = s.Result[:0], 0, nil, ""
		message = append(message, readStatement(s))
		c = c.with(int64(message[len(message)-1].digest(0)))
	}
	d.server.recordSent(sent, message)
	at := sent + int64(d.minLatency+c.with(1).duration(d.plan.meanJitter))
	fate := d.plan.fate(d.proxy, sent, at, false, c.with(2))
	if !fate.arrives {
		return d.lose(ctx, message, fate.at, fate.failure)
	}
	answered := make(chan []pgdb.Statement, 1)
	time.AfterFunc(time.Duration(fate.at-sent),
		func() { answered <- d.server.run(d.proxy, fate.at, message) }) // runs even if ctx ends first
	var answers []pgdb.Statement
	select {
	case answers = <-answered:
	case <-ctx.Done():
		return d.lose(ctx, message, 0, ctx.Err())
	}
	at = fate.at + int64(d.minLatency+c.with(3).duration(d.plan.meanJitter))
	fate = d.plan.fate(d.proxy, fate.at, at, true, c.with(4))
	if !fate.arrives {
		return d.lose(ctx, message, fate.at, fate.failure)
	}
	if !sleepUntil(ctx, fate.at) {
		return d.lose(ctx, message, 0, ctx.Err())
	}
	for i, s := range statements {
		a := &answers[i]
		s.Result, s.Rows, s.Err, s.Code = append(s.Result, a.Result...), a.Rows, a.Err, a.Code
	}
	return nil
}

// lose records the units of charges and refunds with a lost result. It sleeps until a time and returns err,
// or the error of ctx if that ends first.
func (d *simDB) lose(ctx context.Context, message []simStatement, until int64, err error) error {
	d.server.mu.Lock()
	for i := range message {
		for _, e := range message[i].entries {
			d.server.maybeCharged[e.id] += e.n * max(e.cost, -e.cost)
		}
	}
	d.server.mu.Unlock()
	if ctx.Err() != nil || !sleepUntil(ctx, until) {
		return ctx.Err()
	}
	return err
}

// sleepUntil sleeps until a time, and reports whether ctx is still alive.
func sleepUntil(ctx context.Context, at int64) bool {
	timer := time.NewTimer(time.Duration(min(at-simSince(), int64(time.Hour))))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (d *simDB) Exec(context.Context, time.Duration, string) error {
	return errors.New("nothing is migrated here")
}
func (d *simDB) Close() {}
