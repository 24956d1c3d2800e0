package engine_test

import (
	"fmt"
	"slices"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// simPlan holds the events of a simulation, which the seed determines.
type simPlan struct {
	seed     chance
	proxies  int
	load     time.Duration // for how long there are requests
	timeout  time.Duration
	rate     float64       // requests a second at each proxy
	far      time.Duration // the mean of the least time to the server
	noise    time.Duration // the mean of what is added
	drops    float64       // the share of the messages that are lost without a trace
	contest  *ratelimit.Limit
	client   *ratelimit.Limit
	outages  []simOutage
	contests float64 // the share of the requests that want the contested key
}

// simKind is a kind of fault.
type simKind string

const (
	simCrash simKind = "crash" // the unlogged table is empty after it
	// to a standby that lacks the last transactions, and has no unlogged table
	simFailover  simKind = "failover"
	simHang      simKind = "hang"      // nothing is executed until its end
	simHole      simKind = "hole"      // messages vanish
	simPartition simKind = "partition" // those of some proxies vanish
	simSlow      simKind = "slow"      // messages take longer
)

// simOutage is a fault between two times, in nanoseconds of the simulation.
type simOutage struct {
	kind     simKind
	from, to int64
	lag      int64 // of a standby
	extra    int64 // the time that messages take longer
}

// ends reports whether the fault ends the server.
func (o *simOutage) ends() bool { return o.kind == simCrash || o.kind == simFailover }

// stops reports whether no proxy gets decisions during the fault.
func (o *simOutage) stops() bool { return o.ends() || o.kind == simHole || o.kind == simHang }

func (o *simOutage) String() string {
	return fmt.Sprintf("%s %v-%v", o.kind, time.Duration(o.from), time.Duration(o.to))
}

// quiet is the time at the end of a simulation without requests, and calm the least time between two outages.
const (
	simQuiet = 5 * time.Second
	simCalm  = 7 * time.Second
)

// simTimeout avoids multiples of the intervals in package batch: of two timers of one moment, either can be
// first.
const simTimeout = 250*time.Millisecond + 123457

// newSimPlan draws a plan. Most are small; one in twenty has 1,000 proxies, for a shorter time.
func newSimPlan(seed uint64) *simPlan {
	c := chance(0).of(int64(seed))
	p := &simPlan{seed: c, proxies: 3 + int(c.of(1).below(28)), load: 65 * time.Second, timeout: simTimeout,
		rate: 3 + 9*c.of(2).share()}
	switch seed % 20 {
	case 7:
		p.proxies = 1000
		p.load = 14 * time.Second
		p.rate = 4
	case 13:
		p.proxies = 100 + int(c.of(3).below(200))
		p.load = 25 * time.Second
		p.rate = 4
	}
	p.far = time.Duration(100+c.of(4).below(2000)) * time.Microsecond
	if c.of(5).below(4) == 0 {
		p.far *= 10
	}
	p.noise = p.far / 3
	if c.of(6).below(2) == 0 {
		p.drops = 0.002 * c.of(7).share()
	}
	p.contests = 0.5
	p.drawLimits(c.of(8))
	if c.of(9).below(4) > 0 || p.load < simCalm*4 {
		p.drawOutages(c.of(10))
	}
	return p
}

// drawLimits draws the limit of the contested key, with a demand of all proxies of about twice as much,
// and that of clients.
func (p *simPlan) drawLimits(c chance) {
	window := []time.Duration{time.Second, 4 * time.Second, 10 * time.Second,
		30 * time.Second}[c.of(1).below(4)]
	want := p.rate * p.contests * float64(p.proxies) * window.Seconds()
	p.contest = &ratelimit.Limit{
		Prefix: "contest",
		Algorithm: []ratelimit.Algorithm{ratelimit.FixedWindow, ratelimit.SlidingWindow,
			ratelimit.TokenBucket}[c.of(2).below(3)],
		Events: max(1, int64(want/2)), Window: window, Durable: c.of(3).below(2) == 0,
	}
	if c.of(4).below(4) > 0 {
		p.contest.Lease = []float64{0.02, 0.1, 0.5}[c.of(5).below(3)]
	}
	p.client = &ratelimit.Limit{
		Prefix: "client", Algorithm: ratelimit.Algorithm(c.of(6).below(5)), Events: 3 + c.of(7).below(30),
		Window: time.Duration(500+c.of(8).below(15000)) * time.Millisecond, Durable: c.of(9).below(2) == 0,
	}
	if p.client.Algorithm <= ratelimit.TokenBucket && c.of(10).below(2) == 0 {
		p.client.Lease = 0.3
	}
}

// drawOutages draws outages with calm between them.
func (p *simPlan) drawOutages(c chance) {
	kinds := []simKind{simCrash, simFailover, simHang, simHole, simPartition, simSlow}
	if c.of(3).below(6) == 0 {
		// before the first rules are read
		p.outages = append(p.outages, simOutage{kind: simHole, to: c.of(4).below(3e9)})
	}
	at := simCalm + time.Duration(c.of(1).below(int64(time.Second)))
	for n := int64(0); ; n++ {
		d := c.of(2, n)
		length := time.Second + time.Duration(d.of(1).below(int64(3*time.Second)))
		if at+length+4*time.Second > p.load {
			return
		}
		o := simOutage{kind: kinds[d.of(2).below(int64(len(kinds)))], from: int64(at), to: int64(at + length),
			lag: d.of(3).below(longestLag), extra: 1e8 + d.of(4).below(8e8)}
		if o.ends() && d.of(5).below(2) == 0 { // the server hangs before it ends
			hang := o
			hang.kind = simHang
			hang.to = hang.from + int64(time.Second) + d.of(6).below(int64(time.Second))
			shift := hang.to - hang.from
			o.from += shift
			o.to += shift
			length += time.Duration(shift)
			p.outages = append(p.outages, hang)
		}
		p.outages = append(p.outages, o)
		at += length + simCalm + time.Duration(d.of(7).below(int64(4*time.Second)))
	}
}

// lull reports whether no request uses the contested key. This holds during some outages, so that units are
// refunded after them.
func (p *simPlan) lull() bool {
	now := simSince()
	return slices.ContainsFunc(p.outages, func(o simOutage) bool {
		return o.ends() && o.extra%2 == 0 && now >= o.from && now < o.to+int64(time.Second)
	})
}

// simWay is the fate of a message: it arrives at a time, is lost, or fails at a time.
type simWay struct {
	at      int64
	lost    bool
	failure error
}

// concerns reports whether an outage affects a proxy.
func (p *simPlan) concerns(o *simOutage, proxy int) bool {
	return o.kind != simPartition || p.seed.of(20, o.from, int64(proxy)).below(3) == 0
}

// outward returns the fate of a message to the server.
func (p *simPlan) outward(proxy int, sent, at int64, c chance) simWay {
	for i := range p.outages {
		switch o := &p.outages[i]; {
		case !p.concerns(o, proxy) || o.to <= sent || at < o.from:
		case o.ends() && sent < o.from:
			return simWay{at: o.from + c.below(int64(time.Millisecond)), failure: errSimReset}
		case o.ends() && at < o.to:
			return simWay{at: 2*at - sent, failure: errSimRefused}
		case o.kind == simHang && at < o.to:
			at = o.to + c.below(int64(20*time.Millisecond))
		case o.kind == simHole || o.kind == simPartition:
			return simWay{lost: true}
		case o.kind == simSlow && sent >= o.from:
			at += o.extra
		}
	}
	return p.drop(at, c)
}

// homeward returns the fate of an answer.
func (p *simPlan) homeward(proxy int, sent, at int64, c chance) simWay {
	for i := range p.outages {
		switch o := &p.outages[i]; {
		case !p.concerns(o, proxy) || o.to <= sent || at < o.from:
		case o.ends():
			return simWay{at: o.from + c.below(int64(time.Millisecond)), failure: errSimReset}
		case o.kind == simHole || o.kind == simPartition:
			return simWay{lost: true}
		}
	}
	return p.drop(at, c)
}

// drop loses a few messages, and resets the connections of a few others.
func (p *simPlan) drop(at int64, c chance) simWay {
	switch share := c.of(1).share(); {
	case share < p.drops:
		return simWay{lost: true}
	case share < 1.5*p.drops:
		return simWay{at: at, failure: errSimReset}
	}
	return simWay{at: at}
}

// failsOver reports whether a standby is to take over. The caller holds the mutex.
func (s *simServer) failsOver() bool {
	return slices.ContainsFunc(s.outages, func(o simOutage) bool { return o.kind == simFailover })
}

// advance applies the effects of outages up to a time. The caller holds the mutex.
func (s *simServer) advance(at int64) {
	for len(s.outages) > 0 && s.outages[0].to <= at {
		o := s.outages[0]
		s.outages = s.outages[1:]
		if !o.ends() {
			continue
		}
		s.started = o.to
		if o.kind == simFailover {
			s.timeline++
			for len(s.undo) > 0 && s.undo[len(s.undo)-1].at > o.from-o.lag {
				s.undo[len(s.undo)-1].undo()
				s.undo = s.undo[:len(s.undo)-1]
			}
			clear(s.holds)
		}
		s.undo = nil
		lost := simBorn.Add(time.Duration(o.to)).UnixMicro()
		for id := range s.rows {
			if !id.Durable {
				s.begins[id] = append(s.begins[id], simWindow{at: lost})
				delete(s.rows, id)
			}
		}
	}
}
