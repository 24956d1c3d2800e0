package engine_test

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// simPlan holds the events of a simulation, which the seed determines.
type simPlan struct {
	seed           chance
	proxies        int
	load           time.Duration // the time with requests
	timeout        time.Duration
	rate           float64       // requests per second at each proxy
	minLatency     time.Duration // the mean, over proxies, of a proxy's minimum one-way latency
	meanJitter     time.Duration // the mean of the random time added to each message
	lossRate       float64       // the share of lost messages
	conflictRate   float64       // the share of refused statements
	contested      *ratelimit.Limit
	client         *ratelimit.Limit
	outages        []simOutage
	contestedShare float64 // the share of requests for the contested key
	// For requests whose responses are settled, the limit that they reserve of; nil for the others.
	tokens *ratelimit.Limit
}

// simKind is a kind of fault.
type simKind string

const (
	simCrash simKind = "crash" // the unlogged table is empty after it
	// a standby takes over, without the last transactions and the rows of the unlogged table
	simFailover  simKind = "failover"
	simCut       simKind = "cut"       // connections are reset, and new ones refused
	simHang      simKind = "hang"      // the server executes nothing until the end of the hang
	simHole      simKind = "hole"      // messages vanish
	simPartition simKind = "partition" // messages of some proxies vanish
	simSlow      simKind = "slow"      // messages take longer
)

// simOutage is a fault between two times, in nanoseconds of the simulation.
type simOutage struct {
	kind     simKind
	from, to int64
	lag      int64 // the lag of the standby
	extra    int64 // the additional latency of messages
}

// endsServer reports whether the fault ends the server.
func (o *simOutage) endsServer() bool { return o.kind == simCrash || o.kind == simFailover }

// stopsDecisions reports whether the fault stops the decisions of all proxies.
func (o *simOutage) stopsDecisions() bool {
	return o.endsServer() || o.kind == simHole || o.kind == simHang
}

func (o *simOutage) String() string {
	return fmt.Sprintf("%s %v-%v", o.kind, time.Duration(o.from), time.Duration(o.to))
}

// simQuiet is the time without requests at the end of a simulation. simCalm is the minimum time between two
// drawn outages. A hole at the start, and a hang that leads to a crash, may be closer to the next outage.
const (
	simQuiet = 5 * time.Second
	simCalm  = 7 * time.Second
)

// simTimeout is not a multiple of the intervals in package batch, because the order of two timers at one
// moment is random.
const simTimeout = 250*time.Millisecond + 123457

// newSimPlan draws a plan. Most plans have 3 to 30 proxies. One in twenty has 1,000 proxies, and one in
// twenty has 100 to 299, for a shorter time.
func newSimPlan(seed uint64) *simPlan {
	c := chance(0).with(int64(seed))
	p := &simPlan{seed: c, proxies: 3 + int(c.with(1).intn(28)), load: 65 * time.Second, timeout: simTimeout,
		rate: 3 + 9*c.with(2).float()}
	switch seed % 20 {
	case 7:
		p.proxies = 1000
		p.load = 14 * time.Second
		p.rate = 4
	case 13:
		p.proxies = 100 + int(c.with(3).intn(200))
		p.load = 25 * time.Second
		p.rate = 4
	}
	p.minLatency = time.Duration(100+c.with(4).intn(2000)) * time.Microsecond
	if c.with(5).intn(4) == 0 {
		p.minLatency *= 10
	}
	p.meanJitter = p.minLatency / 3
	if c.with(6).intn(2) == 0 {
		p.lossRate = 0.002 * c.with(7).float()
	}
	if seed%4 == 2 {
		p.conflictRate = 0.01
	}
	p.contestedShare = 0.5
	p.drawLimits(c.with(8))
	if c.with(9).intn(4) > 0 || p.load < simCalm*4 {
		p.drawOutages(c.with(10))
	}
	return p
}

// drawLimits draws the limit of the contested key, which allows about half of the requests, and the limit of
// clients.
func (p *simPlan) drawLimits(c chance) {
	window := []time.Duration{time.Second, 4 * time.Second, 10 * time.Second,
		30 * time.Second}[c.with(1).intn(4)]
	want := p.rate * p.contestedShare * float64(p.proxies) * window.Seconds()
	p.contested = &ratelimit.Limit{
		Prefix: "contest",
		Algorithm: []ratelimit.Algorithm{ratelimit.FixedWindow, ratelimit.SlidingWindow,
			ratelimit.TokenBucket}[c.with(2).intn(3)],
		Events: max(1, int64(want/2)), Window: window, Durable: c.with(3).intn(2) == 0,
	}
	if c.with(4).intn(4) > 0 {
		p.contested.Lease = []float64{0.02, 0.1, 0.5}[c.with(5).intn(3)]
	}
	p.client = &ratelimit.Limit{
		Prefix: "client", Algorithm: ratelimit.Algorithm(c.with(6).intn(5)), Events: 3 + c.with(7).intn(30),
		Window: time.Duration(500+c.with(8).intn(15000)) * time.Millisecond, Durable: c.with(9).intn(2) == 0,
	}
	if p.client.Algorithm <= ratelimit.TokenBucket && c.with(10).intn(2) == 0 {
		p.client.Lease = 0.3
	}
}

// drawOutages draws outages at least simCalm apart. A hole may precede them at the start, and a hang may lead
// directly to the end of a server.
func (p *simPlan) drawOutages(c chance) {
	kinds := []simKind{simCrash, simFailover, simHang, simHole, simPartition, simSlow}
	if c.with(3).intn(6) == 0 {
		// before the first rules are read
		p.outages = append(p.outages, simOutage{kind: simHole, to: c.with(4).intn(3e9)})
	}
	at := simCalm + time.Duration(c.with(1).intn(int64(time.Second)))
	for n := int64(0); ; n++ {
		d := c.with(2, n)
		length := time.Second + time.Duration(d.with(1).intn(int64(3*time.Second)))
		if at+length+4*time.Second > p.load {
			return
		}
		kind := kinds[d.with(2).intn(int64(len(kinds)))]
		o := simOutage{kind: kind, from: int64(at), to: int64(at + length),
			lag: d.with(3).intn(maxLag), extra: 1e8 + d.with(4).intn(8e8)}
		if o.endsServer() && d.with(5).intn(2) == 0 { // the server hangs before it ends
			hang := o
			hang.kind = simHang
			hang.to = hang.from + int64(time.Second) + d.with(6).intn(int64(time.Second))
			shift := hang.to - hang.from
			o.from += shift
			o.to += shift
			length += time.Duration(shift)
			p.outages = append(p.outages, hang)
		}
		p.outages = append(p.outages, o)
		at += length + simCalm + time.Duration(d.with(7).intn(int64(4*time.Second)))
	}
}

// isQuiet reports whether no request uses the contested key now: in half of the crashes and failovers, and
// for a second after, so that proxies have unused units to refund.
func (p *simPlan) isQuiet() bool {
	now := simSince()
	return slices.ContainsFunc(p.outages, func(o simOutage) bool {
		return o.endsServer() && o.extra%2 == 0 && now >= o.from && now < o.to+int64(time.Second)
	})
}

// messageFate is the fate of a message. A lost message does not arrive, and its sender gets no failure.
type messageFate struct {
	at      int64 // the time at which the message arrives, or its sender gets failure
	arrives bool
	failure error
}

var simLost = messageFate{at: math.MaxInt64}

// affects reports whether an outage affects a proxy.
func (p *simPlan) affects(o *simOutage, proxy int) bool {
	return o.kind != simPartition || p.seed.with(20, o.from, int64(proxy)).intn(3) == 0
}

// fate returns the fate of a message to the server, or of its reply.
func (p *simPlan) fate(proxy int, sent, at int64, reply bool, c chance) messageFate {
	for i := range p.outages {
		switch o := &p.outages[i]; {
		case !p.affects(o, proxy) || o.to <= sent || at < o.from:
		case (o.endsServer() || o.kind == simCut) && (reply || sent < o.from):
			return messageFate{at: o.from + c.intn(int64(time.Millisecond)), failure: errSimReset}
		case (o.endsServer() || o.kind == simCut) && at < o.to:
			return messageFate{at: 2*at - sent, failure: errSimRefused}
		case o.kind == simHole || o.kind == simPartition:
			return simLost
		case reply:
		case o.kind == simHang && at < o.to:
			at = o.to + c.intn(int64(20*time.Millisecond))
		case o.kind == simSlow && sent >= o.from:
			at += o.extra
		}
	}
	// The network loses a few messages, and resets the connections of a few others.
	switch share := c.with(1).float(); {
	case share < p.lossRate:
		return simLost
	case share < 1.5*p.lossRate:
		return messageFate{at: at, failure: errSimReset}
	}
	return messageFate{at: at, arrives: true}
}

// failsOver reports whether a standby will take over. The caller holds the mutex.
func (s *simServer) failsOver() bool {
	return slices.ContainsFunc(s.outages, func(o simOutage) bool { return o.kind == simFailover })
}

// advance applies the effects of outages up to a time. The caller holds the mutex.
func (s *simServer) advance(at int64) {
	for len(s.outages) > 0 && s.outages[0].to <= at {
		o := s.outages[0]
		s.outages = s.outages[1:]
		if !o.endsServer() {
			continue
		}
		s.started = o.to
		if o.kind == simFailover {
			s.timeline++
			s.replacing = true
			for len(s.undo) > 0 && s.undo[len(s.undo)-1].at > o.from-o.lag {
				s.undo[len(s.undo)-1].undo()
				s.undo = s.undo[:len(s.undo)-1]
			}
			s.replacing = false
			clear(s.charges)
		}
		s.undo = nil
		lost := simBorn.Add(time.Duration(o.to)).UnixMicro()
		for id := range s.rows {
			if !id.Durable {
				s.windows[id] = append(s.windows[id], simWindow{at: lost})
				delete(s.rows, id)
				delete(s.held, id)
			}
		}
	}
}
