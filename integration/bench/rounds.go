package main

import (
	"fmt"
	"log"
	"math"
	"regexp"
	"time"
)

// warmUp is how long a row is loaded before it is measured, in seconds: the least
// that wrk takes.
const warmUp = 1

// measureProxies measures everything that needs a proxy.
func (b *bench) measureProxies() {
	b.measureMemory()
	for _, row := range b.proxyRows {
		if likewise := row.proxy.likewise; likewise != nil && likewise.limit.Limit != "" {
			row.proxy.limit.Limit = likewise.limit.Limit // the two rows are compared
		} else if row.proxy.denies > 0 {
			b.calibrate(row)
		}
		p := b.startProxy(row.proxy)
		if row.proxy == policyCaddy { // or else most rounds would look up keys for the first time
			must(pacedLoad{address: p.address, keys: row.keys.count, requests: row.keys.count}.run(b.ctx))
		}
	}
	b.measureRounds(b.proxyRows, b.measureRow)
	b.measureAllocations()
	b.measureLatency()
	b.measureIdentities()
	b.measureFlood()
	for _, p := range b.proxies {
		if line := regexp.MustCompile(`.*(no decision|database failed|history has dropped).*`).FindString(p.Log()); line != "" {
			b.complaints = append(b.complaints, p.spec.name+" logged: "+line)
		}
	}
	check(b.stopProxies())
}

// measureRounds measures the rows in interleaved rounds: each round measures every row
// once, so a disturbance of the machine meets all rows alike.
func (b *bench) measureRounds(rows []*row, measure func(row *row, round int) sample) {
	for round := 1; round <= b.rounds; round++ {
		for _, row := range rows {
			row.samples = append(row.samples, measure(row, round))
			log.Printf("round %d of %d: %s: %s/s", round, b.rounds, row.name, thousands(row.samples[round-1].rate))
		}
	}
}

// measureRow measures a row of the proxies once.
func (b *bench) measureRow(row *row, round int) sample {
	p := b.startProxy(row.proxy)
	b.runWrk(p, row.keys, warmUp, 2*round)
	cpu, store := cpuTime(p.PID()), b.storeCounters(p)
	r := b.runWrk(p, row.keys, b.seconds, 2*round+1)
	cpuAfter, storeAfter := cpuTime(p.PID()), b.storeCounters(p)
	n := float64(r.Requests)
	s := sample{
		rate: r.rate(), p50: r.P50 / 1000, p99: r.P99 / 1000,
		clientCPU:  microseconds(cpuAfter-cpu) / n,
		storeCPU:   microseconds(storeAfter.cpu-store.cpu) / n,
		wrkCPU:     microseconds(r.cpu) / n,
		statements: float64(storeAfter.transactions-store.transactions) / n,
		wal:        float64(storeAfter.wal-store.wal) / n,
		refused:    float64(r.Refused) / n,
		failed:     float64(r.Failed),
	}
	if row.proxy.denies == 0 {
		s.failed += float64(r.Refused)
	}
	return s
}

// storeCounters are those of the store in which the proxy counts, if it has one.
func (b *bench) storeCounters(p *proxy) counters {
	switch {
	case p.spec.redis:
		return counters{cpu: cpuTime(b.redis.PID())}
	case p.spec.inPostgres():
		return b.postgres.counters(b.ctx)
	}
	return counters{}
}

const (
	// calibrationEvents is how many hits on a key pass in a window of the limit that
	// calibrate looks for. It is small, so that the window is short and the rate of
	// refusals is stable after the warm-up.
	calibrationEvents = 3
	calibrationTries  = 4
)

// calibrate finds the window with which the limit refuses the wanted share of the
// load. The load depends on the limit, so each guess is measured like a round, and
// the next guess follows from the share that passed.
func (b *bench) calibrate(row *row) {
	s := row.proxy
	passes := 1 - s.denies
	guess := 50000 * passes / float64(row.keys.count) // hits on a key that pass, a second
	window := time.Duration(calibrationEvents / guess * float64(time.Second)).Round(time.Millisecond)
	best, off := "", math.Inf(1)
	for try := range calibrationTries {
		s.limit.Limit = fmt.Sprintf("%d %s", calibrationEvents, window)
		found := b.measureRow(row, -try)
		log.Printf("limit %s: %s refused", s.limit.Limit, percent(found.refused))
		check(b.stopProxy(b.proxies[s]))
		if d := math.Abs(found.refused - s.denies); d < off {
			best, off = s.limit.Limit, d
		}
		// Half and twice at most: one try may have been disturbed.
		window = time.Duration(float64(window) * min(2, max(0.5, (1-found.refused)/passes))).Round(time.Millisecond)
	}
	s.limit.Limit = best
}

// measureAllocations counts the objects that a Caddy allocates for a request. What it
// allocates more with a limit than without is the decision's.
func (b *bench) measureAllocations() {
	if b.wants(nameAllocations) {
		found := b.compare(nameAllocations, 3, []*proxySpec{plainCaddy, slidingCaddy}, func(p *proxy) float64 { // three rounds hardly differ
			before := b.memStats(p).Mallocs
			requests := b.runWrk(p, thousand, 1, 1).Requests
			return float64(b.memStats(p).Mallocs-before) / float64(requests)
		})
		more := pairs(found[1], found[0], difference)
		b.allocations = &more
	}
}

// compare measures a figure of several Caddys, in interleaved rounds. It returns the
// figures of each of them.
func (b *bench) compare(name string, rounds int, specs []*proxySpec, measure func(*proxy) float64) [][]float64 {
	found := make([][]float64, len(specs))
	for round := range rounds {
		for i, s := range specs {
			found[i] = append(found[i], measure(b.startProxy(s)))
			log.Printf("round %d of %d: %s: %.2f of %s", round+1, rounds, name, found[i][round], s.name)
		}
	}
	return found
}
