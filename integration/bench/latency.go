package main

import (
	"math"
	"time"
)

// pacedLoad is a load that does not wait for answers: each request is due at a time
// of its own. Its latency counts from then, even if no connection was free. wrk
// sends as fast as answers arrive, so it would send less while an answer is late,
// and not see how many requests that delays.
type pacedLoad struct {
	address        string
	rate           float64 // requests a second; 0 sends as fast as answers arrive
	requests       int
	warmUp         time.Duration // the latencies of requests due earlier do not count
	firstKey, keys int           // keys are numbered from firstKey to firstKey+keys-1
	atRandom       bool          // draw the keys, instead of sending them in turn

	name        func(n int) string // of the key with a number; nil is keyName
	connections int                // 0 is those of every load
	status      int                // of an answer that is as wanted; 0 is 200
}

type pacedResult struct {
	p99     time.Duration
	refused int // answers with another status than the wanted one
}

// latencyResult is Caddy's p99 in milliseconds at a rate that does not use the
// machine up: without a limit, with one, and with the same limit and leases.
type latencyResult struct {
	rate                 float64 // requests a second
	plain, exact, leased spread
	added, addedLeased   spread // the differences of each round from plain
	refused              int    // requests that were not answered with 200
}

// measureLatency compares the p99 of Caddy with and without a limit, at a third of the
// rate that it reaches without.
func (b *bench) measureLatency() {
	if !b.wants(nameLatency) {
		return
	}
	full := spreadOf(b.rates(caddyPlain)).median
	if math.IsNaN(full) { // the rounds have not measured it
		full = b.measureRow(&row{proxy: plainCaddy, keys: thousand}, 1).rate
	}
	r := &latencyResult{rate: full / 3}
	found := b.compare(nameLatency, b.rounds, []*proxySpec{plainCaddy, slidingCaddy, leasedCaddy}, func(p *proxy) float64 {
		result := must(pacedLoad{
			address: p.address, rate: r.rate, keys: thousand.count, atRandom: true,
			requests: int(r.rate * float64(warmUp+b.seconds)), warmUp: warmUp * time.Second,
		}.run(b.ctx))
		r.refused += result.refused
		return microseconds(result.p99) / 1000
	})
	r.plain, r.exact, r.leased = spreadOf(found[0]), spreadOf(found[1]), spreadOf(found[2])
	r.added, r.addedLeased = pairs(found[1], found[0], difference), pairs(found[2], found[0], difference)
	b.latency = r
}
