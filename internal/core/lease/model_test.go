package lease_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// oracle checks the admitted hits against the definition of a limit. It records admitted hits and the starts
// of windows or refills, but not the charges of the row, which leases make in advance.
type oracle struct {
	limit   *ratelimit.Limit
	slack   int64 // the cost that may pass in addition, after a reset or a step of the server's clock
	windows []int64
	passed  []admission
	err     error // the first violation of the limit
}

// admission is an admitted hit.
type admission struct{ time, cost int64 }

// recordWindow records the time of the row's window or refill, if it is new.
func (o *oracle) recordWindow(r *algorithm.Row) {
	start := r.Start
	if o.limit.Algorithm == ratelimit.TokenBucket {
		start = r.Refill
		if len(o.windows) > 0 && r.HasTokens {
			return // all refills follow from the first
		}
	}
	if start != 0 && (len(o.windows) == 0 || o.windows[len(o.windows)-1] != start) {
		o.windows = append(o.windows, start)
	}
}

// admit records an admitted hit.
func (o *oracle) admit(at, cost int64) {
	o.passed = append(o.passed, admission{at, cost})
	if left := o.remainingAt(at); left < -o.slack && o.err == nil {
		o.err = fmt.Errorf("%d too many passed at %d, with a slack of %d", -left-o.slack, at, o.slack)
	}
}

// admittedBetween returns the cost admitted from one time until before another.
func (o *oracle) admittedBetween(from, to int64) int64 {
	sum := int64(0)
	for _, p := range o.passed {
		if p.time >= from && p.time < to {
			sum += p.cost
		}
	}
	return sum
}

// remainingAt returns the remaining quota at a time.
func (o *oracle) remainingAt(at int64) int64 {
	w := o.limit.Window.Microseconds()
	if len(o.windows) == 0 {
		return o.limit.Capacity()
	}
	start := o.windows[len(o.windows)-1]
	switch o.limit.Algorithm {
	case ratelimit.FixedWindow:
		if at >= start+w {
			return o.limit.Events - o.admittedBetween(start+w, at+1) // nothing may pass without a window
		}
		return o.limit.Events - o.admittedBetween(start, start+w)
	case ratelimit.SlidingWindow:
		if at >= start+2*w {
			return o.limit.Events - o.admittedBetween(start+2*w, at+1)
		}
		if at >= start+w {
			start += w
		}
		prev := o.admittedBetween(start-w, start)
		elapsed := max(0, at-start)
		weighted := (prev*(w-elapsed) + w - 1) / w
		return o.limit.Events - weighted - o.admittedBetween(start, start+w)
	}
	if o.limit.RefillsEvenly() {
		return o.remainingEvenlyAt(at)
	}
	start = o.windows[0]
	tokens, refilled := o.limit.Capacity(), int64(0)
	gain := func(to int64) {
		refills := (to-start)/w - refilled
		if refills <= 0 {
			return
		}
		refilled += refills
		tokens = min(tokens+refills*o.limit.Events, o.limit.Capacity())
	}
	for _, p := range o.passed {
		gain(p.time)
		tokens -= p.cost
	}
	gain(at)
	return tokens
}

// remainingEvenlyAt implements remainingAt for a bucket that gains its tokens evenly. A token is w units.
func (o *oracle) remainingEvenlyAt(at int64) int64 {
	w := o.limit.Window.Microseconds()
	full := o.limit.Capacity() * w
	content, last := full, int64(0)
	gain := func(to int64) {
		if to > last {
			if to-last > w || content+(to-last)*o.limit.Events > full {
				content = full
			} else {
				content += (to - last) * o.limit.Events
			}
			last = to
		}
	}
	for _, p := range o.passed {
		gain(p.time)
		content -= p.cost * w
	}
	gain(at)
	if content < 0 {
		return -((w - 1 - content) / w)
	}
	return content / w
}

// drawLeased draws a limit with leases.
func drawLeased(t *rapid.T) *ratelimit.Limit {
	l := &ratelimit.Limit{
		Prefix: "p",
		Algorithm: rapid.SampledFrom([]ratelimit.Algorithm{ratelimit.SlidingWindow, ratelimit.FixedWindow,
			ratelimit.TokenBucket}).Draw(t, "algorithm"),
		Events: rapid.Int64Range(20, 300).Draw(t, "events"),
		Lease:  rapid.SampledFrom([]float64{0.001, 0.05, 0.5, 0.5}).Draw(t, "lease"),
		Window: time.Duration(rapid.SampledFrom([]int64{200000, 1000000, 4000000, 60000000}).Draw(t,
			"window")) * time.Microsecond,
	}
	if l.Algorithm == ratelimit.TokenBucket && rapid.Bool().Draw(t, "has burst") {
		l.Burst = rapid.Int64Range(20, 600).Draw(t, "burst")
	}
	if err := l.Validate(); err != nil {
		t.Fatal(err)
	}
	return l
}

// drawAdvance draws the next advance of the time, often to a time at which something changes.
func drawAdvance(t *rapid.T, w *world) int64 {
	window := w.limit.Window.Microseconds()
	horizon := min(window/20, 1000000)
	toTurn := int64(0)
	if n := len(w.oracle.windows); n > 0 {
		toTurn = window - (w.server()-w.oracle.windows[n-1])%window
		if toTurn < 0 || toTurn > window {
			toTurn = 0
		}
	}
	return rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, horizon/4), rapid.Int64Range(0, horizon/4),
		rapid.Int64Range(0, horizon),
		rapid.Int64Range(0, 2*window),
		rapid.SampledFrom([]int64{1, toTurn, max(0, toTurn-1), toTurn + 1,
			max(0, toTurn-horizon/2)})).Draw(t, "advance")
}

// reset resets the row as a request of p does.
func (w *world) reset(p *process) {
	lease.EndLease(p.leases, row)
	w.row = algorithm.Row{}
	w.time++ // no row is deleted and created again within a microsecond
	slack := w.oracle.slack + w.leasedUnits() + w.unitsBeingRefunded()
	*w.oracle = oracle{limit: w.limit, slack: slack}
	if n := lease.Stats(p.leases).Units; n != 0 {
		w.oracle.err = fmt.Errorf("the process that resets the row still has %d units", n)
	}
}

// stepClock sets the server's clock ahead or back, by up to three windows.
func (w *world) stepClock(t *rapid.T) {
	window := w.limit.Window.Microseconds()
	by := rapid.SampledFrom([]int64{-1, 1}).Draw(t, "direction") * rapid.Int64Range(0, 3*window).Draw(t, "by")
	if by > 0 {
		w.oracle.slack += w.leasedUnits() + w.limit.Events // a window's quota passes, as without leases
	} else {
		w.oracle.slack += w.limit.Events
	}
	w.serverAhead += by
	if ahead := max(w.row.Start, w.row.Refill) - w.server(); ahead > window {
		// The row counts as new, now or later, and its windows then start once more.
		w.oracle.slack += w.leasedUnits() + w.unitsBeingRefunded() + w.limit.Capacity() +
			(ahead/window+1)*w.limit.Events
	}
}

// Processes with leases never admit more than the limit, although answers are slow, lost or out of order,
// windows end, processes crash, rows are reset, and the server's clock is stepped. In addition to the limit,
// only leased units may pass: after a reset those of the other processes, and after a step of the clock those
// of all processes.
func TestLeasesNeverExceedLimit(t *testing.T) {
	leased := 0
	conformance.Check(t, 6000, func(t *rapid.T) {
		w := newWorld(drawLeased(t), rapid.IntRange(1, 3).Draw(t, "processes"))
		wild := rapid.Bool().Draw(t, "wild") // with resets and steps of the clock
		for n := rapid.IntRange(20, 150).Draw(t, "steps"); n > 0; n-- {
			w.time += drawAdvance(t, w)
			p := rapid.SampledFrom(w.processes).Draw(t, "process")
			switch action := rapid.IntRange(0, 29).Draw(t, "action"); {
			case action < 14: // several hits with immediate answers
				for i := rapid.IntRange(1, 12).Draw(t, "hits"); i > 0; i-- {
					if !p.hit(rapid.SampledFrom([]int64{1, 1, 1, 1, 3}).Draw(t, "cost")) {
						f := p.batches[len(p.batches)-1]
						w.execute(f)
						p.answer(f)
					} else {
						leased++
					}
				}
			case action < 16:
				p.hit(1)
			case action < 18:
				p.send()
			case action < 21 && len(p.batches) > 0:
				w.execute(rapid.SampledFrom(p.batches).Draw(t, "executed"))
			case action < 24 && len(p.batches) > 0:
				f := rapid.SampledFrom(p.batches).Draw(t, "answered")
				w.execute(f)
				p.answer(f)
			case action == 24 && len(p.batches) > 0:
				p.drop(rapid.SampledFrom(p.batches).Draw(t, "lost"))
			case action == 25:
				p.sweep()
			case action == 26: // the process ends and another one starts
				if rapid.Bool().Draw(t, "crash") {
					p.batches = nil
				} else {
					lease.EndAll(p.leases)
					w.execute(p.send())
				}
				p.restart()
			case action == 27 && wild:
				w.reset(p)
			case action == 28 && wild:
				w.stepClock(t)
			}
			if w.oracle.err != nil {
				t.Fatalf("%+v: %v", *w.limit, w.oracle.err)
			}
		}
	})
	t.Logf("%d hits were decided by leases", leased)
	if leased < 1000 {
		t.Errorf("leases decided %d hits, want at least 1000", leased)
	}
}

// If batches are answered quickly, all unused units are refunded within two horizons after the last hit: the
// row then has exactly the charges of the admitted hits.
func TestUnitsAreRefundedAfterLastHit(t *testing.T) {
	leased := 0
	conformance.Check(t, 1500, func(t *rapid.T) {
		w := newWorld(drawLeased(t), rapid.IntRange(1, 3).Draw(t, "processes"))
		horizon := lease.Horizon(w.processes[0].leases, w.limit)
		round := func() {
			for _, p := range w.processes {
				f := p.sweep()
				w.execute(f)
				p.answer(f)
			}
		}
		for n := rapid.IntRange(5, 100).Draw(t, "steps"); n > 0; n-- {
			w.time += rapid.Int64Range(0, horizon/8).Draw(t, "advance")
			p := rapid.SampledFrom(w.processes).Draw(t, "process")
			for i := rapid.IntRange(0, 6).Draw(t, "hits"); i > 0; i-- {
				if !p.hit(1) {
					f := p.batches[len(p.batches)-1]
					w.execute(f)
					p.answer(f)
				}
			}
			round()
		}
		if w.leasedUnits() > 0 {
			leased++
		}
		closes := rapid.Bool().Draw(t, "closes")
		for i := 0; i < 16 && !closes; i++ {
			w.time += horizon / 8
			round()
		}
		if closes {
			for _, p := range w.processes {
				lease.EndAll(p.leases)
			}
			round()
		}
		if n := w.leasedUnits(); n != 0 {
			t.Fatalf("%+v: %d units are held, want 0", *w.limit, n)
		}
		free, _ := algorithm.Of(w.limit).Peek(w.limit, &w.row, w.server())
		if want := w.oracle.remainingAt(w.server()); free != want || w.oracle.err != nil {
			t.Fatalf("%+v: %d are left in the row, want %d by the admitted hits; error %v", *w.limit, free,
				want, w.oracle.err)
		}
	})
	t.Logf("%d schedules ended with units held", leased)
	if leased < 30 {
		t.Errorf("%d schedules ended with units held, want at least 30", leased)
	}
}
