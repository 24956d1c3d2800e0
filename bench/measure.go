package main

import (
	"log"
	"math"
	"net/http"
	"regexp"
	"slices"
	"time"
)

// sample is the measurement of a row or of its control in one round. It maps the titles of figures to values.
type sample map[string]float64

// Titles of figures.
const (
	cpuAll    = "CPU µs/request" // the sum of the next two
	cpuProxy  = "proxy"
	cpuStore  = "store" // Postgres with all its processes, or Redis
	perSecond = "requests/s"
	walBytes  = "WAL bytes/request"
	medianMs  = "median ms" // paced loads only
	p99Ms     = "p99 ms"    // paced loads only
)

const (
	// maxIntervalRatio bounds the ratio of an interval's end to its middle. A row with a wider interval gets
	// further rounds.
	maxIntervalRatio = 1.05
	// turnsPerRound is the number of times that a row gets load in a round.
	turnsPerRound = 10
	// minRounds is the minimum number of rounds for an interval. See tailCount.
	minRounds = 8
)

// contender is a row or its control during their measurement. Each has its own Postgres, so that deferred
// work, such as lease refunds and history writes, is attributed to the right contender.
type contender struct {
	row          *row
	proxy        *proxy
	client       *client
	totalsBefore sample  // totals at the start of the round
	result       *result // responses in the round
}

// measure starts one proxy for a row and one for its control, and measures both.
func (b *bench) measure(r *row) {
	defer b.stopProxies()
	control := *r.base
	control.samples, control.wrong = nil, 0
	r.control = &control
	first, second := b.open(r, 0), b.open(r.control, 1)
	defer first.client.close()
	defer second.client.close()
	first.client.run(time.Second) // opens connections, looks keys up and fills caches
	second.client.run(time.Second)
	b.takeTurns(first, second)
	if r.base.base == nil { // a plain proxy is only measured as a control
		r.base.samples, r.base.wrong = append(r.base.samples, control.samples...), r.base.wrong+control.wrong
	}
	log.Printf("%s: %d rounds: %s of %s", r.name, len(r.samples), r.ratio().text(3), r.base.name)
}

// takeTurns measures a row and its control in turns. In each round both get load for turnsPerRound short
// times, in alternating order, so that other work on the machine affects both equally. A row with a wide
// interval gets up to 3 × b.rounds rounds.
func (b *bench) takeTurns(measured, control *contender) {
	order := []*contender{measured, control}
	for round := 0; round < b.rounds || round < 3*b.rounds && measured.row.hasWideInterval(); round++ {
		for _, s := range order {
			s.totalsBefore, s.result = b.totals(s.proxy), newResult()
		}
		for range turnsPerRound {
			for _, s := range order {
				s.result.add(s.client.run(b.turn))
				check(b.ctx.Err())
			}
			slices.Reverse(order)
		}
		for _, s := range order {
			s.row.samples = append(s.row.samples, s.sample(b.totals(s.proxy)))
			s.row.wrong += s.result.countOtherThan(s.row.statuses()...)
		}
	}
}

// open starts the proxy of a row on the Postgres b.postgres[server], and creates a client.
func (b *bench) open(r *row, server int) *contender {
	p := b.startProxy(r, server)
	switch {
	case r.filled:
		b.fill(p)
	case r.isOwnLimit(): // charge each key once, so that no round pays for new keys
		b.sendInTurn(p, r.load.keyCount)
	}
	c := &contender{row: r, proxy: p, client: newClient(p.address, r.load)}
	if r.gateway {
		c.client.tail = gatewayHeaders(p) + c.client.tail
	}
	return c
}

// sample returns the measurement of a round, from the totals at its end.
func (c *contender) sample(after sample) sample {
	r := c.result
	if c.client.load.rate > 0 {
		return sample{medianMs: r.percentile(50), p99Ms: r.percentile(99)}
	}
	perRequest := sample{perSecond: float64(r.requests) / r.seconds}
	for title := range after {
		perRequest[title] = (after[title] - c.totalsBefore[title]) / float64(max(r.requests, 1))
	}
	perRequest[cpuAll] = perRequest[cpuProxy] + perRequest[cpuStore]
	return perRequest
}

// totals returns the processor time and the WAL bytes that a proxy and its store have used so far.
func (b *bench) totals(p *proxy) sample {
	s := sample{cpuProxy: cpuTime(p.PID())}
	if p.decider != nil {
		s[cpuProxy] += cpuTime(p.decider.PID())
	}
	if p.database != nil {
		s[cpuStore], s[walBytes] = cpuTime(p.database.postmaster), p.database.walSize(b.ctx)
	}
	if p.row.inRedis() {
		s[cpuStore] = cpuTime(b.redis.PID())
	}
	return s
}

// sendInTurn sends a request for each key, and returns the number of wrong responses.
func (b *bench) sendInTurn(p *proxy, keyCount int) (wrong int) {
	c := newClient(p.address, load{draw: inTurn, keyCount: keyCount, connections: usualLoad.connections})
	defer c.close()
	for sent := 0; sent < keyCount; sent += 10000 {
		wrong += c.sendN(min(10000, keyCount-sent)).countOtherThan(http.StatusOK)
		check(b.ctx.Err())
	}
	return wrong
}

// statuses returns the expected statuses of responses.
func (r *row) statuses() []int {
	if r.limit != nil && r.limit.limit == scarce {
		return []int{http.StatusOK, http.StatusTooManyRequests}
	}
	return []int{http.StatusOK}
}

// attempt calls f, and reports whether f succeeded. It reports a failure and skips it, so that a run without
// Redis still reports the other rows.
func (b *bench) attempt(name string, f func()) bool {
	err := func() (err error) {
		defer catch(&err)
		f()
		return nil
	}()
	check(b.ctx.Err())
	if err != nil {
		b.complain("Skipped: %s: %v", name, err)
	}
	return err == nil
}

// values returns the values of the figure with a title, one for each round.
func (r *row) values(title string) (values []float64) {
	for _, s := range r.samples {
		values = append(values, s[title])
	}
	return values
}

// figure estimates the figure with a title. A figure that is 0 in each round counts as not measured.
func (r *row) figure(title string) estimate {
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

// difference estimates how much the row's figure exceeds the control's.
func (r *row) difference(title string) estimate {
	if r.control == nil {
		return estimateOf(nil)
	}
	return differenceOf(r.values(title), r.control.values(title))
}

// hasWideInterval reports whether the ratio of the row's CPU to the control's has a wide interval.
func (r *row) hasWideInterval() bool {
	e := r.ratio()
	return r.load.rate == 0 && math.Sqrt(e.high/e.low) > maxIntervalRatio
}

// doubtfulLine matches lines of a proxy's log that make its figures doubtful.
var doubtfulLine = regexp.MustCompile(`(no decision|database failed|history has dropped).{0,60}`)
