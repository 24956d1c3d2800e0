package main

import (
	"log"
	"regexp"
	"slices"
)

// warmUp is how long a row is loaded before it is measured, in seconds: the least
// that wrk takes.
const warmUp = 1

// measureProxies measures everything that needs a proxy.
func (b *bench) measureProxies() {
	b.measureMemory()
	for _, row := range b.proxyRows {
		p := b.startProxy(row.proxy)
		if row.proxy == policyCaddy { // or else most rounds would look up keys for the first time
			b.sendInTurn(p, 0, row.load.keys, row.load.connections)
		}
	}
	b.measureRounds(b.proxyRows, b.measureRow)
	b.measureLatency()
	b.measureFlood()
	for _, p := range b.proxies {
		if line := regexp.MustCompile(`.*(no decision|database failed|history has dropped).*`).FindString(p.Log()); line != "" {
			b.complaints = append(b.complaints, p.spec.name+" logged: "+line)
		}
	}
	check(b.stopProxies())
}

// measureRounds measures the rows in interleaved rounds: each round measures every row
// once, so a disturbance of the machine meets all rows alike. Every second round goes
// from the last row to the first, so that no row always follows the same one.
func (b *bench) measureRounds(rows []*row, measure func(row *row, round int) sample) {
	order := slices.Clone(rows)
	for round := 1; round <= b.rounds; round++ {
		for _, row := range order {
			row.samples = append(row.samples, measure(row, round))
			log.Printf("round %d of %d: %s: %s/s", round, b.rounds, row.name, number(row.samples[round-1][perSecond], 0))
		}
		slices.Reverse(order)
	}
}

// measureRow measures a row of the proxies once.
func (b *bench) measureRow(row *row, round int) sample {
	p := b.startProxy(row.proxy)
	b.runWrk(p, row.load, warmUp, 2*round)
	before := b.totals(p)
	r := b.runWrk(p, row.load, b.seconds, 2*round+1)
	after := b.totals(p)
	after[cpuWrk], after[refused] = r.cpu, 100*float64(r.Refused)
	s := after.since(before, float64(r.Requests))
	s[perSecond], s[p50], s[p99], s[wrong] = r.rate(), r.P50/1000, r.P99/1000, float64(r.Failed)
	if row.proxy.limit == nil || row.proxy.limit.limit != scarce {
		s[wrong] += float64(r.Refused)
	}
	return s
}

// totals are what a proxy and its store have used and done so far.
func (b *bench) totals(p *proxy) sample {
	s := sample{}
	if p.spec.inPostgres() {
		s = b.postgres.totals(b.ctx)
	}
	if p.spec.redis {
		s[cpuStore] = cpuTime(b.redis.PID())
	}
	if !p.spec.traefik {
		s[objects] = float64(b.memStats(p).Mallocs)
	}
	s[cpuProxy] = cpuTime(p.PID())
	return s
}

// since is by how much the totals have grown for each of n requests.
func (s sample) since(before sample, n float64) sample {
	for title := range s {
		s[title] = (s[title] - before[title]) / n
	}
	s[cpuAll] = s[cpuProxy] + s[cpuStore] + s[cpuWrk]
	return s
}
