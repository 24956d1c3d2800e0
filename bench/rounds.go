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
	b.attempt(nameMemory, b.measureMemory)
	b.proxyRows = slices.DeleteFunc(b.proxyRows, func(row *row) bool {
		return !b.attempt(row.name, func() {
			p := b.startProxy(row.proxy)
			if row.proxy.ours() && row.proxy.limit.policy { // or else most rounds would look up keys for the first time
				b.sendInTurn(p, 0, row.load.keys, row.load.connections)
			}
		})
	})
	b.proxyRows = b.measureRounds(b.proxyRows, b.measureRow)
	b.attempt(nameLatency, b.measureLatency)
	b.attempt(nameFlood, b.measureFlood)
	b.attempt(namePages, b.measurePages)
	for _, p := range b.proxies {
		if line := regexp.MustCompile(`.*(no decision|database failed|history has dropped).*`).FindString(p.Log()); line != "" {
			b.complain("%s logged: %s", p.spec.name, line)
		}
	}
	if err := b.stopProxies(); err != nil {
		b.complain("%v", err)
	}
}

// attempt measures something, and tells whether it could. What fails is left out of the
// report, so that a run without Redis, or with one proxy that ends, reports the rest.
func (b *bench) attempt(name string, f func()) bool {
	err := func() (err error) {
		defer catch(&err)
		f()
		return nil
	}()
	check(b.ctx.Err())
	if err != nil {
		b.complain("Left out: %s: %v", name, err)
	}
	return err == nil
}

// measureRounds measures the rows in rounds, and returns those that it could measure in each
// round. Each round measures every row once, so a disturbance of the machine meets all rows alike.
func (b *bench) measureRounds(rows []*row, measure func(row *row, round int) sample) []*row {
	failed := map[*row]bool{}
	for round := 1; round <= b.rounds; round++ {
		for _, i := range order(len(rows), b.rounds, round) {
			if row := rows[i]; !failed[row] {
				failed[row] = !b.attempt(row.name, func() { row.samples = append(row.samples, measure(row, round)) })
				log.Printf("round %d of %d: %s: %s/s", round, b.rounds, row.name, number(spreadOf(row.figures(perSecond)).median, 0))
			}
		}
	}
	return slices.DeleteFunc(rows, func(row *row) bool { return failed[row] })
}

// order is the order of n rows in a round: rounds of Williams's Latin square. A row has
// another place in each round, and follows another row, but rows that are near to each
// other in the table stay so: a ratio is of two rows that are measured one soon after the other.
func order(n, rounds, round int) (rows []int) {
	even := n + n%2 // the square has this property for even sizes; if n is odd, one row is none
	for place := range even {
		row := (place + 1) / 2 // 0, 1, -1, 2, -2 …
		if place%2 == 0 {
			row = even - row
		}
		if row = (row + (round-1)*even/rounds) % even; row < n {
			rows = append(rows, row)
		}
	}
	return rows
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
	if p.spec.inRedis() {
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
