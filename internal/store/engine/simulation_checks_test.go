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

// simAdmitted is an admitted hit, with the time in microseconds at which it was decided, or used a unit of a
// lease.
type simAdmitted struct {
	at, cost int64
	source   ratelimit.Source
}

// checkLimits fails if more passed than a limit allows while the database answered.
func (r *simRun) checkLimits() {
	for id, all := range r.admitted {
		l := r.server.limits[id.Prefix]
		slices.SortFunc(all, func(a, b simAdmitted) int { return cmp.Compare(a.at, b.at) })
		windows := r.server.begins[id]
		row := simTruth{limit: l}
		for _, hit := range all {
			for len(windows) > 0 && windows[0].at <= hit.at {
				row.turn(windows[0].start)
				windows = windows[1:]
			}
			// FromMemory: the database does not answer
			if hit.source == ratelimit.FromMemory || r.excused(id, hit) {
				continue
			}
			if !row.take(hit) {
				r.fail("%s of %s (%s, %d in %v, lease %v): a hit too many at %v", id.Key, id.Prefix,
					l.Algorithm, l.Capacity(), l.Window, l.Lease, time.UnixMicro(hit.at).Sub(simBorn))
				break
			}
		}
	}
}

// excused reports whether a hit is within the documented bounds of a server that has ended: its charge is in
// a table or on a server that no longer exists.
func (r *simRun) excused(id lease.RowID, hit simAdmitted) bool {
	at := (hit.at - simBorn.UnixMicro()) * 1000
	for _, o := range r.plan.outages {
		if !o.ends() {
			continue
		}
		if hit.source == ratelimit.FromLease && at >= o.from-o.lag && at < o.to+int64(simNotice) {
			return true
		}
		if o.kind == simFailover && id.Durable && at > o.from-o.lag-1000 && at <= o.from {
			return true
		}
	}
	return false
}

// simNotice bounds the use of units that were charged on a lost server: a proxy checks the server twice a
// second.
const simNotice = 700 * time.Millisecond

// simTruth counts what was admitted in the windows of the database.
type simTruth struct {
	limit             *ratelimit.Limit
	start, used, prev int64
	row               algorithm.Row // of limits without leases
}

// turn begins a window; 0 means that the row was lost.
func (t *simTruth) turn(start int64) {
	window := t.limit.Window.Microseconds()
	switch {
	case start == 0 || t.start == 0:
		*t = simTruth{limit: t.limit, start: start}
	case t.limit.Algorithm == ratelimit.TokenBucket:
		t.used = max(0, t.used-t.limit.Events*((start-t.start)/window))
	case t.limit.Algorithm == ratelimit.SlidingWindow && start == t.start+window:
		t.prev, t.used = t.used, 0
	default:
		t.prev, t.used = 0, 0
	}
	t.start = start
}

// take reports whether a hit fits.
func (t *simTruth) take(hit simAdmitted) bool {
	l := t.limit
	if l.Algorithm == ratelimit.GCRA || l.Algorithm == ratelimit.SlidingLog {
		return algorithm.Of(l).Take(l, &t.row, hit.at, 1, hit.cost) == 1
	}
	t.used += hit.cost
	window := l.Window.Microseconds()
	weighted := (t.prev*max(0, window-max(0, hit.at-t.start)) + window - 1) / window
	if l.Algorithm != ratelimit.SlidingWindow {
		weighted = 0
	}
	return t.used+weighted <= l.Capacity()
}

// checkLeases fails if units of leases are not refunded after a time without requests.
func (r *simRun) checkLeases() {
	for _, p := range r.proxies {
		if n := p.store.Stats()[engine.LeasedUnits]; n > 0 {
			r.fail("%s holds %d units after %v without requests", p.name, n, simQuiet)
		}
	}
	now := simSince()
	for id, row := range r.server.rows {
		l := r.server.limits[id.Prefix]
		if l.Lease == 0 || l.Algorithm != ratelimit.FixedWindow && l.Algorithm != ratelimit.SlidingWindow ||
			len(r.server.begins[id]) == 0 {
			continue
		}
		begin := (row.Start - simBorn.UnixMicro()) * 1000
		if now > begin+l.Window.Nanoseconds() ||
			slices.ContainsFunc(r.plan.outages,
				func(o simOutage) bool { return o.to+int64(3*time.Second) > begin }) {
			continue // another window, or one in which proxies have admitted hits by themselves
		}
		used, unsure := int64(0), r.server.unsure[id]
		for _, hit := range r.admitted[id] {
			if hit.at >= row.Start {
				used += hit.cost
			} else if hit.source == ratelimit.FromMemory {
				unsure += hit.cost // it may have been charged in this window
			}
		}
		r.homes++
		if lost := row.Count - used; lost > unsure {
			r.fail("%s of %s: %d of %d units that were charged were not used and did not come home", id.Key,
				id.Prefix, lost, row.Count)
		}
	}
}

// checkCharges fails if a row without leases was charged more than was admitted, by the database or without
// it, except for charges without an answer.
func (r *simRun) checkCharges() {
	for id, charged := range r.server.charged {
		if r.server.limits[id.Prefix].Lease > 0 {
			continue
		}
		admitted := int64(0)
		for _, hit := range r.admitted[id] {
			admitted += hit.cost
		}
		if charged > admitted+r.server.unsure[id] {
			r.fail("%s of %s: %d units were admitted, and %d charged", id.Key, id.Prefix, admitted, charged)
		}
	}
}

// simInstant is a short time, within which proxies act in step.
const simInstant = 20 * time.Millisecond

// checkStampede fails if proxies send much more after an outage than before it: in a second, or in a short
// time.
func (r *simRun) checkStampede() {
	for i, o := range r.plan.outages {
		if !o.stops() || o.from == 0 || i+1 < len(r.plan.outages) && r.plan.outages[i+1].from == o.to {
			continue
		}
		first := o.from
		if i > 0 && r.plan.outages[i-1].to == o.from {
			first = r.plan.outages[i-1].from
		}
		for _, width := range []time.Duration{time.Second, simInstant} {
			before := most(r.server.sent, first-int64(3*time.Second), first, width)
			from := o.to
			if o.kind == simHang && width < time.Second {
				// what was sent is answered at once, and its senders go on
				from += int64(60 * time.Millisecond)
			}
			after := most(r.server.sent, from, from+int64(2*time.Second), width)
			spare := 10 + before/5
			if width < time.Second {
				// few statements vary more: of 10,000 seeds, one or two have a little more by chance
				spare += 10
			}
			if after > 2*before+spare {
				r.fail("after the %s until %v, %d statements within %v, and %d before it", o.kind,
					time.Duration(o.to), after, width, before)
			}
		}
		if n := most(r.server.probes, o.to, o.to+int64(time.Second), simInstant); o.kind != simHang &&
			n > 5+len(r.proxies)/4 {
			r.fail("after the %s until %v, %d of %d proxies ask for a sign of life within %v", o.kind,
				time.Duration(o.to), n, len(r.proxies), simInstant)
		}
	}
}

// most returns the largest number of messages sent in a millisecond between two times.
func most(sent []int, from, to int64, width time.Duration) int {
	begin, end, n := int(from/1e6)+1, int(to/1e6), int(width.Milliseconds())
	most, sum := 0, 0
	for at := begin; at < end && at < len(sent); at++ {
		sum += sent[at]
		if at >= begin+n {
			sum -= sent[at-n]
		}
		most = max(most, sum)
	}
	return most
}

// checkFairness fails if a proxy has got less than half of its share of the contested key over a minute. Of a
// small share, a proxy may have got less by chance, but not five standard deviations less.
func (r *simRun) checkFairness() {
	if len(r.plan.outages) > 0 || r.plan.load < time.Minute {
		return
	}
	all := int64(0)
	for _, p := range r.proxies {
		all += p.admitted
	}
	for _, p := range r.proxies {
		share := all / int64(len(r.proxies))
		if less := float64(share - p.admitted); 2*p.admitted < share && less > 5*math.Sqrt(float64(share)) {
			r.fail("%s has got %d of the contested key, and its share is %d", p.name, p.admitted, share)
		}
	}
}
