package engine_test

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// simAdmitted is an admitted hit.
type simAdmitted struct {
	at     int64 // the time of the decision in microseconds
	cost   int64
	source ratelimit.Source
}

// checkLimits fails the simulation if, while the database answered, more hits passed than a limit allows.
func (r *simRun) checkLimits() {
	for id, hits := range r.admitted {
		l := r.server.limits[id.Prefix]
		slices.SortFunc(hits, func(a, b simAdmitted) int { return cmp.Compare(a.at, b.at) })
		windows := r.server.windows[id]
		counter := simCounter{limit: l}
		for _, hit := range hits {
			for len(windows) > 0 && windows[0].at <= hit.at {
				counter.startWindow(windows[0].start)
				windows = windows[1:]
			}
			// Local decisions during an outage (FromMemory) may exceed the limit.
			if hit.source == ratelimit.FromMemory || r.isWithinDocumentedLoss(id, hit) {
				continue
			}
			if !counter.take(hit) {
				r.fail("%s of %s (%s, %d in %v, lease %v): a hit beyond the limit at %v", id.Key, id.Prefix,
					l.Algorithm, l.Capacity(), l.Window, l.Lease, time.UnixMicro(hit.at).Sub(simBorn))
				break
			}
		}
	}
}

// isWithinDocumentedLoss reports whether the charge of a hit may have been lost with a server that crashed or
// was replaced. docs/servers.md documents this loss.
func (r *simRun) isWithinDocumentedLoss(id lease.RowID, hit simAdmitted) bool {
	at := (hit.at - simBorn.UnixMicro()) * 1000
	for _, o := range r.plan.outages {
		if !o.endsServer() {
			continue
		}
		if hit.source == ratelimit.FromLease && at >= o.from-o.lag && at < o.to+int64(simNotice) {
			return true
		}
		// The time of a decision is in whole microseconds, so it may be up to a microsecond before the lag.
		isInLag := at > o.from-o.lag-1000 && at <= o.from
		if o.kind == simFailover && id.Durable && isInLag {
			return true
		}
	}
	return false
}

// simNotice bounds the time for which a proxy still uses its leases after their server is lost: a proxy
// checks the server twice per second.
const simNotice = 700 * time.Millisecond

// simCounter counts the hits admitted in the windows of the database.
type simCounter struct {
	limit             *ratelimit.Limit
	start, used, prev int64
	row               algorithm.Row // the row of a limit without leases
}

// startWindow starts a window; 0 means that the row was lost.
func (c *simCounter) startWindow(start int64) {
	window := c.limit.Window.Microseconds()
	switch {
	case start == 0 || c.start == 0:
		*c = simCounter{limit: c.limit, start: start}
	case c.limit.Algorithm == ratelimit.TokenBucket:
		c.used = max(0, c.used-c.limit.Events*((start-c.start)/window))
	case c.limit.Algorithm == ratelimit.SlidingWindow && start == c.start+window:
		c.prev, c.used = c.used, 0
	default:
		c.prev, c.used = 0, 0
	}
	c.start = start
}

// take counts a hit, and reports whether it is within the limit.
func (c *simCounter) take(hit simAdmitted) bool {
	l := c.limit
	if l.Algorithm == ratelimit.GCRA || l.Algorithm == ratelimit.SlidingLog {
		return algorithm.Of(l).Charge(l, &c.row, hit.at, 1, hit.cost) == 1
	}
	c.used += hit.cost
	window := l.Window.Microseconds()
	weighted := (c.prev*max(0, window-max(0, hit.at-c.start)) + window - 1) / window
	if l.Algorithm != ratelimit.SlidingWindow {
		weighted = 0
	}
	return c.used+weighted <= l.Capacity()
}

// simRecovery bounds the time after an outage until all proxies ask the database again.
const simRecovery = 3 * time.Second

// checkLeases fails the simulation if units of leases are not refunded after simQuiet without requests.
func (r *simRun) checkLeases() {
	for _, p := range r.proxies {
		if n := p.store.Stats()[engine.LeasedUnits]; n > 0 {
			r.fail("%s holds %d units after %v without requests, want 0", p.name, n, simQuiet)
		}
	}
	now := simSince()
	for id, row := range r.server.rows {
		l := r.server.limits[id.Prefix]
		hasWindows := l.Algorithm == ratelimit.FixedWindow || l.Algorithm == ratelimit.SlidingWindow
		if l.Lease == 0 || !hasWindows || len(r.server.windows[id]) == 0 {
			continue
		}
		start := (row.Start - simBorn.UnixMicro()) * 1000
		if now > start+l.Window.Nanoseconds() ||
			slices.ContainsFunc(r.plan.outages,
				func(o simOutage) bool { return o.to+int64(simRecovery) > start }) {
			continue // the window has ended, or proxies have admitted hits locally in it
		}
		used, maybeCharged := int64(0), r.server.maybeCharged[id]
		for _, hit := range r.admitted[id] {
			if hit.at >= row.Start {
				used += hit.cost
			} else if hit.source == ratelimit.FromMemory {
				// The store decided the hit before this window, but may have charged it in the window.
				maybeCharged += hit.cost
			}
		}
		r.checkedRows++
		if lost := row.Count - used; lost > maybeCharged {
			r.fail("%s of %s: %d of %d charged units were neither used nor refunded, want at most %d", id.Key,
				id.Prefix, lost, row.Count, maybeCharged)
		}
	}
}

// checkCharges fails the simulation if a row without leases was charged more than the admitted cost. Charges
// with a lost result may come on top.
func (r *simRun) checkCharges() {
	for id, charged := range r.server.charged {
		if r.server.limits[id.Prefix].Lease > 0 {
			continue
		}
		admitted := int64(0)
		for _, hit := range r.admitted[id] {
			admitted += hit.cost
		}
		if charged > admitted+r.server.maybeCharged[id] {
			r.fail("%s of %s: %d units were charged, want at most %d", id.Key, id.Prefix, charged,
				admitted+r.server.maybeCharged[id])
		}
	}
}

// These are the bounds of checkStampede. It counts the statements within any second, and within any
// simInstant, to find proxies that act in step.
const (
	simInstant = 20 * time.Millisecond
	// simGrowth bounds the statements after an outage relative to those before it. It is above 2, because
	// proxies send their usual statements and those that have waited.
	simGrowth = 2.2
	// simFew is added to the bound, because small numbers vary by chance. Within simInstant it is added
	// twice, because one or two of 10,000 seeds exceed a smaller bound.
	simFew = 10
	// simBacklog is the time after a hang in which the server executes the pending messages, and the proxies
	// that sent them continue.
	simBacklog = 60 * time.Millisecond
	// simBefore and simAfter are the times before and after an outage in which statements are counted.
	simBefore, simAfter = 3 * time.Second, 2 * time.Second
)

// checkStampede fails the simulation if proxies send many more statements after an outage than before it.
func (r *simRun) checkStampede() {
	for i, o := range r.plan.outages {
		nextFollows := i+1 < len(r.plan.outages) && r.plan.outages[i+1].from == o.to
		if !o.stopsDecisions() || o.from == 0 || nextFollows {
			continue
		}
		faultsBegan := o.from
		if i > 0 && r.plan.outages[i-1].to == o.from {
			faultsBegan = r.plan.outages[i-1].from
		}
		for width, slack := range map[time.Duration]int{time.Second: simFew, simInstant: 2 * simFew} {
			before := maxWithin(r.server.sent, faultsBegan-int64(simBefore), faultsBegan, width)
			from := o.to
			if o.kind == simHang && width < time.Second {
				from += int64(simBacklog)
			}
			after := maxWithin(r.server.sent, from, from+int64(simAfter), width)
			if bound := int(simGrowth*float64(before)) + slack; after > bound {
				r.fail("after the %s until %v: %d statements within %v, want at most %d", o.kind,
					time.Duration(o.to), after, width, bound)
			}
		}
		probes := maxWithin(r.server.probes, o.to, o.to+int64(time.Second), simInstant)
		// Proxies probe at random times, and those that owe charges check the server, too. If a third of them
		// do so within one instant, it is not by chance.
		if maxProbes := 6 + len(r.proxies)/3; o.kind != simHang && probes > maxProbes {
			r.fail("after the %s until %v: %d proxies probe the server within %v, want at most %d", o.kind,
				time.Duration(o.to), probes, simInstant, maxProbes)
		}
	}
}

// maxWithin returns the largest number of messages sent within width between two times.
func maxWithin(sent []int, from, to int64, width time.Duration) int {
	start, end, n := int(from/1e6)+1, int(to/1e6), int(width.Milliseconds())
	maxSum, sum := 0, 0
	for i := start; i < end && i < len(sent); i++ {
		sum += sent[i]
		if i >= start+n {
			sum -= sent[i-n]
		}
		maxSum = max(maxSum, sum)
	}
	return maxSum
}

// checkFairness fails the simulation if a proxy got less than half of its equal share of the contested key in
// a minute or more. A difference of up to five standard deviations may be due to chance, and is allowed.
func (r *simRun) checkFairness() {
	if len(r.plan.outages) > 0 || r.plan.load < time.Minute {
		return
	}
	total := int64(0)
	for _, p := range r.proxies {
		total += p.admitted
	}
	for _, p := range r.proxies {
		share := total / int64(len(r.proxies))
		missing := float64(share - p.admitted)
		if 2*p.admitted < share && missing > 5*math.Sqrt(float64(share)) {
			r.fail("%s got %d of the contested key, want at least half of %d", p.name, p.admitted, share)
		}
	}
}
