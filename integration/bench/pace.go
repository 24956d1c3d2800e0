package main

import (
	"context"
	"fmt"
)

// paceResult is the latency at a pace that leaves the machine time to spare.
type paceResult struct {
	rate    float64 // requests a second
	plain   spread  // p99 in milliseconds
	limited spread
	added   spread // the difference of each round
	late    int64  // requests that were not answered with 200
}

// paceConnections are as many as wrk uses.
const paceConnections = wrkConnections

// measurePace compares the p99 of Caddy with and without a limit, at half of the
// rate that it manages without.
func (b *bench) measurePace(ctx context.Context, r *results) error {
	if !b.wants(namePace) {
		return nil
	}
	rate, err := b.plainRate(ctx)
	if err != nil {
		return err
	}
	found := &paceResult{rate: rate / 2}
	var p99 [2][]float64
	var added []float64
	for round := 1; round <= b.rounds; round++ {
		var each [2]float64
		for i, s := range []*proxySpec{plainCaddy, slidingCaddy} {
			p, err := b.startProxy(ctx, s)
			if err != nil {
				return err
			}
			result, err := b.runSteady(ctx, steady{
				address: p.address, rate: found.rate, connections: paceConnections, keys: thousand.count,
				warm: warmUp, seconds: float64(b.seconds), seed: uint64(round),
			})
			if err != nil {
				return fmt.Errorf("%s at %.0f requests/s: %w", s.name, found.rate, err)
			}
			each[i] = result.P99 / 1000
			found.late += result.Other
			p99[i] = append(p99[i], each[i])
		}
		added = append(added, each[1]-each[0])
		b.progress("p99 at %s requests/s, round %d of %d: %.2f ms plain, %.2f ms with the limit", thousands(found.rate), round, b.rounds, each[0], each[1])
	}
	found.plain, found.limited, found.added = spreadOf(p99[0]), spreadOf(p99[1]), spreadOf(added)
	r.pace = found
	return nil
}

// plainRate is what Caddy manages without a limit.
func (b *bench) plainRate(ctx context.Context) (float64, error) {
	for _, row := range b.rows {
		if row.name == caddyPlain {
			return spreadOf(rates(row.samples)).median, nil
		}
	}
	p, err := b.startProxy(ctx, plainCaddy)
	if err != nil {
		return 0, err
	}
	if _, err := b.runWrk(ctx, p.address, thousand, warmUp, 1); err != nil {
		return 0, err
	}
	result, err := b.runWrk(ctx, p.address, thousand, b.seconds, 2)
	return result.rate(), err
}
