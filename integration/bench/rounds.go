package main

import (
	"context"
	"fmt"
	"math"
	"time"
)

// sample is what one round has measured of a row.
type sample struct {
	rate       float64 // requests a second
	p50, p99   float64 // milliseconds
	proxyCPU   float64 // microseconds a request
	storeCPU   float64 // the same of Postgres, or of Redis
	loadCPU    float64 // and of wrk
	statements float64 // a request
	wal        float64 // bytes of Postgres's write-ahead log a request
	refused    float64 // the share that was answered with 400 or more
	failed     int64   // requests without an answer, or with one that should not be
}

// warmUp is how long a row is loaded before it is measured, in seconds, the
// least that wrk takes.
const warmUp = 1

// measureProxies measures all that needs a proxy.
func (b *bench) measureProxies(ctx context.Context, r *results) error {
	r.rows = b.rows
	for _, row := range b.rows {
		var err error
		switch {
		case row.proxy.denies > 0:
			err = b.calibrate(ctx, row)
		case row.proxy.filled:
			continue // by measureMemory
		default:
			_, err = b.startProxy(ctx, row.proxy)
		}
		if err != nil {
			return err
		}
	}
	if err := b.measureMemory(ctx, r); err != nil {
		return err
	}
	for round := 1; round <= b.rounds; round++ {
		for _, row := range b.rows {
			s, err := b.measure(ctx, row, round)
			if err != nil {
				return fmt.Errorf("%s: %w", row.name, err)
			}
			row.samples = append(row.samples, s)
			b.progress("round %d of %d: %s: %s requests/s", round, b.rounds, row.name, thousands(s.rate))
		}
	}
	if err := b.measureAllocations(ctx, r); err != nil {
		return err
	}
	if err := b.measurePace(ctx, r); err != nil {
		return err
	}
	for _, p := range b.proxies {
		complaint, err := p.complaints()
		if err != nil {
			return err
		}
		if complaint != "" {
			r.complaints = append(r.complaints, complaint)
		}
	}
	return b.stopProxies()
}

// measure measures a row once.
func (b *bench) measure(ctx context.Context, row *row, round int) (sample, error) {
	p := b.proxies[row.proxy.name]
	if _, err := b.runWrk(ctx, p.address, row.keys, warmUp, 2*round); err != nil {
		return sample{}, err
	}
	before, err := b.usage(ctx, p)
	if err != nil {
		return sample{}, err
	}
	r, err := b.runWrk(ctx, p.address, row.keys, b.seconds, 2*round+1)
	if err != nil {
		return sample{}, err
	}
	after, err := b.usage(ctx, p)
	if err != nil {
		return sample{}, err
	}
	n := float64(r.Requests)
	s := sample{
		rate: r.rate(), p50: r.P50 / 1000, p99: r.P99 / 1000,
		proxyCPU:   microseconds(after.proxy-before.proxy) / n,
		storeCPU:   microseconds(after.store-before.store) / n,
		loadCPU:    microseconds(r.cpu) / n,
		statements: float64(after.wrote.transactions-before.wrote.transactions) / n,
		wal:        float64(after.wrote.wal-before.wrote.wal) / n,
		refused:    float64(r.Refused) / n,
		failed:     r.Failed,
	}
	if row.proxy.denies == 0 {
		s.failed += r.Refused
	}
	return s, nil
}

// usage is what a proxy and its store have used up so far.
type usage struct {
	proxy, store time.Duration
	wrote        counters
}

func (b *bench) usage(ctx context.Context, p *proxy) (u usage, err error) {
	if err := p.program.alive(); err != nil {
		return u, err
	}
	if u.proxy, err = cpuOfFamily(p.program.pid()); err != nil {
		return u, err
	}
	switch {
	case p.spec.redis:
		u.store, err = cpuOfFamily(b.redis.pid())
	case p.spec.counts():
		if u.store, err = b.postgres.cpu(); err == nil {
			u.wrote, err = b.postgres.counters(ctx)
		}
	}
	return u, err
}

func microseconds(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

const (
	// calibrationEvents is how many hits on a key pass in the window that
	// calibrate looks for: few, so that the window is short and the limit has
	// found its rhythm by the end of the warming up.
	calibrationEvents = 3
	calibrationTries  = 4
)

// calibrate finds the limit at which the wanted share of the load is refused. Of
// the load the keys have equal parts, and the limit lets so many hits a window
// pass of each. How great the load is depends on the limit, so it takes a guess
// and some tries, each of them like a round.
func (b *bench) calibrate(ctx context.Context, row *row) error {
	s := row.proxy
	passes := 1 - s.denies
	guess := 50000 * passes / float64(row.keys.count) // hits on a key that pass, a second
	window := time.Duration(calibrationEvents / guess * float64(time.Second)).Round(time.Millisecond)
	best, off := window, math.Inf(1)
	for try := range calibrationTries {
		s.limit.limit = fmt.Sprintf("%d %s", calibrationEvents, window)
		p, err := b.startProxy(ctx, s)
		if err != nil {
			return err
		}
		found, err := b.measure(ctx, row, -try)
		if err != nil {
			return err
		}
		b.progress("limit %s: %s refused", s.limit.limit, percent(found.refused))
		if err := b.stopProxy(p); err != nil {
			return err
		}
		if d := math.Abs(found.refused - s.denies); d < off {
			best, off = window, d
		}
		// Half and twice at most: one try may have been disturbed.
		window = time.Duration(float64(window) * min(2, max(0.5, (1-found.refused)/passes))).Round(time.Millisecond)
	}
	s.limit.limit = fmt.Sprintf("%d %s", calibrationEvents, best)
	_, err := b.startProxy(ctx, s)
	return err
}

// allocationRounds is how often allocations are counted; they hardly differ.
const allocationRounds = 3

// measureAllocations counts the objects that a Caddy allocates for a request,
// with an admitting limit and without one. The difference is the decision's.
func (b *bench) measureAllocations(ctx context.Context, r *results) error {
	if !b.wants(nameAllocations) {
		return nil
	}
	var differences []float64
	for round := 1; round <= allocationRounds; round++ {
		var each [2]float64
		for i, s := range []*proxySpec{plainCaddy, slidingCaddy} {
			p, err := b.startProxy(ctx, s)
			if err != nil {
				return err
			}
			before, err := p.readMemStats(ctx, false)
			if err != nil {
				return err
			}
			load, err := b.runWrk(ctx, p.address, thousand, 1, round)
			if err != nil {
				return err
			}
			after, err := p.readMemStats(ctx, false)
			if err != nil {
				return err
			}
			each[i] = float64(after.mallocs-before.mallocs) / float64(load.Requests)
		}
		b.progress("allocations, round %d of %d: %.2f a request plain, %.2f with the limit", round, allocationRounds, each[0], each[1])
		differences = append(differences, each[1]-each[0])
	}
	found := spreadOf(differences)
	r.allocations = &found
	return nil
}
