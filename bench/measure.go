package main

import (
	"log"
	"math"
	"net/http"
	"regexp"
	"slices"
	"time"
)

// sample is the measurement of a row or of its control in one round, by title.
type sample map[string]float64

// Titles of figures.
const (
	cpuAll    = "CPU µs/request" // the sum of the next two
	cpuProxy  = "proxy"
	cpuStore  = "store" // Postgres with all its processes, or Redis
	perSecond = "requests/s"
	walBytes  = "WAL bytes/request"
	medianMs  = "median ms" // of a paced load; so is the next one
	p99Ms     = "p99 ms"
)

// widest bounds the ratio of an interval's end to its middle. Rows beyond it are measured again.
const widest = 1.05

// turns is the number of times that a row has load in a round.
const turns = 10

// fewest is the least number of rounds for an interval, see leftOut.
const fewest = 8

// side is a row or its control during their measurement. Each side has its own Postgres, so that work after
// the requests, such as by leases and the history, counts for the right side.
type side struct {
	row    *row
	proxy  *proxy
	client *client
	before sample  // the totals at the begin of the round
	result *result // of the round
}

// measure starts a proxy each for a row and its control, and measures them.
func (b *bench) measure(r *row) {
	defer b.stopProxies()
	control := *r.base
	control.samples, control.wrong = nil, 0
	r.control = &control
	first, second := b.open(r, 0), b.open(r.control, 1)
	defer first.client.close()
	defer second.client.close()
	first.client.run(time.Second) // which opens connections, looks keys up and fills caches
	second.client.run(time.Second)
	b.takeTurns(first, second)
	if r.base.base == nil { // the row of a proxy without a limit is measured beside others only
		r.base.samples, r.base.wrong = append(r.base.samples, control.samples...), r.base.wrong+control.wrong
	}
	log.Printf("%s: %d rounds: %s of %s", r.name, len(r.samples), r.ratio().text(3), r.base.name)
}

// takeTurns measures a row and its control in turns: in each round both have load for ten short times, in
// alternating order, so that other work on the machine affects both alike. A row with a wide interval is
// measured for up to twice as many further rounds.
func (b *bench) takeTurns(first, second *side) {
	order := []*side{first, second}
	for round := 0; round < b.rounds || round < 3*b.rounds && first.row.wide(); round++ {
		for _, s := range order {
			s.before, s.result = b.totals(s.proxy), newResult()
		}
		for range turns {
			for _, s := range order {
				s.result.add(s.client.run(b.slice))
				check(b.ctx.Err())
			}
			slices.Reverse(order)
		}
		for _, s := range order {
			s.row.samples = append(s.row.samples, s.sample(b.totals(s.proxy)))
			s.row.wrong += s.result.unlike(s.row.statuses()...)
		}
	}
}

// open starts the proxy of a row with the Postgres of index server, and makes a client.
func (b *bench) open(r *row, server int) *side {
	p := b.startProxy(r, server)
	switch {
	case r.filled:
		b.fill(p)
	case r.ours(): // or else many rounds would have keys for the first time
		b.sendInTurn(p, r.load.keys)
	}
	return &side{row: r, proxy: p, client: newClient(p.address, r.load)}
}

// sample returns the measurement of a round, from the totals at its end.
func (s *side) sample(after sample) sample {
	r := s.result
	if s.client.load.rate > 0 {
		return sample{medianMs: r.percentile(50), p99Ms: r.percentile(99)}
	}
	of := sample{perSecond: float64(r.requests) / r.seconds}
	for title := range after {
		of[title] = (after[title] - s.before[title]) / float64(max(r.requests, 1))
	}
	of[cpuAll] = of[cpuProxy] + of[cpuStore]
	return of
}

// totals returns what a proxy and its store have used so far.
func (b *bench) totals(p *proxy) sample {
	s := sample{cpuProxy: cpuTime(p.PID())}
	if p.asked != nil {
		s[cpuProxy] += cpuTime(p.asked.PID())
	}
	if p.database != nil {
		s[cpuStore], s[walBytes] = cpuTime(p.database.postmaster), p.database.wal(b.ctx)
	}
	if p.row.inRedis() {
		s[cpuStore] = cpuTime(b.redis.PID())
	}
	return s
}

// sendInTurn sends a request for each key, and returns how many got a wrong answer.
func (b *bench) sendInTurn(p *proxy, keys int) (wrong int) {
	c := newClient(p.address, load{draw: inTurn, keys: keys, connections: hundred.connections})
	defer c.close()
	for sent := 0; sent < keys; sent += 10000 {
		wrong += c.sendN(min(10000, keys-sent)).unlike(http.StatusOK)
		check(b.ctx.Err())
	}
	return wrong
}

// statuses returns the expected statuses of answers.
func (r *row) statuses() []int {
	if r.limit != nil && r.limit.limit == scarce {
		return []int{http.StatusOK, http.StatusTooManyRequests}
	}
	return []int{http.StatusOK}
}

// attempt calls f, and reports whether f succeeded. The report leaves out what failed, so that a run without
// Redis, or with a proxy that ends, reports the rest.
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

// values returns a figure of each round.
func (r *row) values(title string) (all []float64) {
	for _, s := range r.samples {
		all = append(all, s[title])
	}
	return all
}

// figures estimates a figure of the row. A figure that is 0 in each round counts as not measured.
func (r *row) figures(title string) estimate {
	values := r.values(title)
	if !slices.ContainsFunc(values, func(v float64) bool { return v != 0 }) {
		values = nil
	}
	return estimateOf(values)
}

// ratio estimates the ratio of the row's CPU to the control's.
func (r *row) ratio() estimate {
	if r.control == nil {
		return estimateOf(nil)
	}
	return ratioOf(r.values(cpuAll), r.control.values(cpuAll))
}

// difference estimates the difference of a figure to the control's.
func (r *row) difference(title string) estimate {
	if r.control == nil {
		return estimateOf(nil)
	}
	return differenceOf(r.values(title), r.control.values(title))
}

// wide reports whether the ratio of the row's CPU to the control's has a wide interval.
func (r *row) wide() bool {
	e := r.ratio()
	return r.load.rate == 0 && math.Sqrt(e.high/e.low) > widest
}

// logged matches lines of a proxy's log that make its figures doubtful.
var logged = regexp.MustCompile(`(no decision|database failed|history has dropped).{0,60}`)
