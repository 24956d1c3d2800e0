package lease_test

import (
	"fmt"
	"hash/maphash"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// world is one row, and the processes that hold leases of it. The row changes by the Go steps,
// which package postgres holds equal to its SQL.
type world struct {
	limit     *ratelimit.Limit
	time      int64 // true time, which all monotonic clocks measure
	step      int64 // what the server's clock is ahead of it
	row       algorithm.Row
	processes []*process
	oracle    *oracle
}

// server is the server's time.
func (w *world) server() int64 { return w.time + w.step }

// process is a set of leases and its batches under way.
type process struct {
	w       *world
	leases  *lease.Set
	plugin  bool // the next hit comes through the plugin
	batches []*flight
}

// flight is a batch that was sent, and maybe executed, and not answered.
type flight struct {
	sent     int64
	cost     int64 // of the hit that waits; 0 if there is none
	asks     []lease.Ask
	returns  []lease.Return
	executed bool

	// The answer, if there is one.
	admitted bool
	answers  []lease.Answer
}

var row = lease.RowID{Prefix: "p", Key: "k"}

func newWorld(l *ratelimit.Limit, processes int) *world {
	w := &world{limit: l, step: conformance.NewClock().Micro, oracle: &oracle{limit: l}}
	for i := 0; i < processes; i++ {
		w.processes = append(w.processes, &process{w: w, leases: w.newSet()})
	}
	return w
}

func (w *world) newSet() *lease.Set {
	return lease.New(lease.Options{Max: 10, Horizon: time.Second, Clock: func() int64 { return w.time }})
}

// hit has a process decide a hit from its lease, or sends a batch with it.
func (p *process) hit(cost int64) bool {
	if p.plugin = !p.plugin; p.plugin && p.quick(cost) {
		p.w.oracle.admit(p.w.server(), cost)
		return true
	}
	hits := []ratelimit.Hit{{Limit: p.w.limit, Key: "k", Cost: cost}}
	decisions := make([]ratelimit.Decision, 1)
	if lease.Take(p.leases, hits, decisions) {
		if decisions[0].Allowed {
			p.w.oracle.admit(p.w.server(), cost)
		} else if !p.w.limit.LeaseEarly || decisions[0].RetryAfter <= 0 {
			p.w.oracle.wrong = fmt.Errorf("a lease refuses: %+v", decisions[0])
		}
		return true
	}
	p.send(cost)
	return false
}

// quick uses spare units as the interpreted plugin does.
func (p *process) quick(cost int64) bool {
	s := p.leases.Shards[maphash.String(p.leases.Seed, row.Key)%lease.ShardCount]
	l := s.Rows[row]
	if l == nil || (l.Spare < cost || time.Duration(p.w.time)*time.Microsecond >= l.SpareEnds) && !lease.Extend(p.leases, s, l, cost) {
		return false
	}
	l.Spare -= cost
	if left := l.Rest + l.Spare; left < 0 || left > p.w.limit.Capacity() {
		p.w.oracle.wrong = fmt.Errorf("%d are said to be left", left)
	}
	return true
}

// send sends a batch, with a hit if cost is not 0.
func (p *process) send(cost int64) *flight {
	asks, returns := lease.Work(p.leases, false)
	f := &flight{sent: p.w.time, cost: cost, asks: asks, returns: returns}
	p.batches = append(p.batches, f)
	return f
}

// execute runs a batch on the row.
func (w *world) execute(p *process, f *flight) {
	if f.executed {
		return
	}
	f.executed = true
	now, l, d := w.server(), w.limit, algorithm.Of(w.limit)
	for _, r := range f.returns {
		if w.row.Start != 0 || w.row.HasTokens { // a refund joins the rows that are there
			d.Adjust(l, &w.row, now, r.Units.N, r.Units.Claim)
		}
	}
	a := lease.Answer{Row: row, Limit: l, Now: now}
	if f.cost > 0 {
		f.admitted = d.Take(l, &w.row, now, 1, f.cost) == 1
		a.Refused = !f.admitted
		w.oracle.watch(&w.row)
		if f.admitted {
			w.oracle.admit(now, f.cost)
		}
	}
	if len(f.asks) > 0 {
		a.Ask = &f.asks[0]
		if n := d.Take(l, &w.row, now, f.asks[0].N, 1); n > 0 {
			life, claim := d.Lease(l, &w.row, now, lease.MostLife(p.leases, l))
			a.Leased = lease.Units{N: n, Ends: f.sent + life, Claim: claim}
		}
		w.oracle.watch(&w.row)
	}
	if f.cost > 0 || len(f.asks) > 0 {
		free, reset := d.Look(l, &w.row, now)
		a.Free, a.Reset = free, time.UnixMicro(reset)
		f.answers = append(f.answers, a)
	}
}

// answer gives a process the answer to a batch.
func (p *process) answer(f *flight) {
	if p.w.limit.LeaseEarly {
		lease.SetRoundTrip(p.leases, p.w.time-f.sent)
	}
	for i := range f.answers {
		lease.Update(p.leases, &f.answers[i])
	}
	p.forget(f)
}

// forget loses an answer.
func (p *process) forget(f *flight) {
	for i := range p.batches {
		if p.batches[i] == f {
			p.batches = append(p.batches[:i:i], p.batches[i+1:]...)
			return
		}
	}
}

// held is what all processes hold, or may come to hold.
func (w *world) held() int64 {
	sum := int64(0)
	for _, p := range w.processes {
		sum += lease.Total(p.leases)
		for _, f := range p.batches {
			for _, a := range f.answers {
				sum += a.Leased.N
			}
		}
	}
	return sum
}

// returning is what is on its way back. A bucket that was reset takes it in again: unlike a
// window, it has nothing that tells it from the bucket before.
func (w *world) returning() int64 {
	sum := int64(0)
	for _, p := range w.processes {
		for _, f := range p.batches {
			for _, r := range f.returns {
				sum += r.Units.N
			}
		}
		asks, returns := lease.Work(p.leases, true)
		for _, r := range returns {
			sum += r.Units.N
		}
		p.batches = append(p.batches, &flight{sent: w.time, asks: asks, returns: returns})
	}
	return sum
}

// oracle checks what passes against the definition of a limit. It knows when hits passed, and
// where the row's windows or refills lie, and nothing of charges.
type oracle struct {
	limit   *ratelimit.Limit
	slack   int64 // what may pass besides, after a reset or a step of the server's clock
	windows []int64
	passed  []passed
	wrong   error
}

type passed struct{ at, cost int64 }

// watch notes where the row's windows or refills lie.
func (o *oracle) watch(r *algorithm.Row) {
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

// admit notes that a hit has passed.
func (o *oracle) admit(at, cost int64) {
	o.passed = append(o.passed, passed{at, cost})
	if left := o.free(at); left < -o.slack && o.wrong == nil {
		o.wrong = fmt.Errorf("%d too many passed at %d, with a slack of %d", -left-o.slack, at, o.slack)
	}
}

// between is what passed from one time until before another.
func (o *oracle) between(from, to int64) int64 {
	sum := int64(0)
	for _, p := range o.passed {
		if p.at >= from && p.at < to {
			sum += p.cost
		}
	}
	return sum
}

// free is what is left of the limit at a time.
func (o *oracle) free(at int64) int64 {
	w := o.limit.Window.Microseconds()
	if len(o.windows) == 0 {
		return o.limit.Capacity()
	}
	start := o.windows[len(o.windows)-1]
	switch o.limit.Algorithm {
	case ratelimit.FixedWindow:
		if at >= start+w {
			return o.limit.Events - o.between(start+w, at+1) // nothing may pass without a window
		}
		return o.limit.Events - o.between(start, start+w)
	case ratelimit.SlidingWindow:
		if at >= start+2*w {
			return o.limit.Events - o.between(start+2*w, at+1)
		}
		if at >= start+w {
			start += w
		}
		prev := o.between(start-w, start)
		elapsed := at - start
		if elapsed < 0 {
			elapsed = 0
		}
		weighted := (prev*(w-elapsed) + w - 1) / w
		return o.limit.Events - weighted - o.between(start, start+w)
	}
	if o.limit.RefillsEvenly() {
		return o.freeEvenly(at)
	}
	start = o.windows[0]
	tokens, refilled := o.limit.Capacity(), int64(0)
	gain := func(to int64) {
		refills := (to-start)/w - refilled
		if refills <= 0 {
			return
		}
		refilled += refills
		if tokens += refills * o.limit.Events; tokens > o.limit.Capacity() {
			tokens = o.limit.Capacity()
		}
	}
	for _, p := range o.passed {
		gain(p.at)
		tokens -= p.cost
	}
	gain(at)
	return tokens
}

// freeEvenly is free of a bucket that gains its tokens evenly: w of a token are one.
func (o *oracle) freeEvenly(at int64) int64 {
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
		gain(p.at)
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
		Prefix: "p", Algorithm: rapid.SampledFrom([]ratelimit.Algorithm{ratelimit.SlidingWindow, ratelimit.FixedWindow, ratelimit.TokenBucket}).Draw(t, "algorithm"),
		Events: rapid.Int64Range(20, 300).Draw(t, "events"), Lease: rapid.SampledFrom([]float64{0.001, 0.05, 0.5, 0.5}).Draw(t, "lease"),
		Window:     time.Duration(rapid.SampledFrom([]int64{200000, 1000000, 4000000, 60000000}).Draw(t, "window")) * time.Microsecond,
		LeaseEarly: rapid.Bool().Draw(t, "early"),
	}
	if l.Algorithm == ratelimit.TokenBucket && rapid.Bool().Draw(t, "has burst") {
		l.Burst = rapid.Int64Range(20, 600).Draw(t, "burst")
	}
	if err := l.Validate(); err != nil {
		t.Fatal(err)
	}
	return l
}

// drawAdvance draws by how much the time moves: often to where something changes.
func drawAdvance(t *rapid.T, w *world) int64 {
	window := w.limit.Window.Microseconds()
	horizon := window / 20
	if horizon > 1000000 {
		horizon = 1000000
	}
	toTurn := int64(0)
	if n := len(w.oracle.windows); n > 0 {
		toTurn = window - (w.server()-w.oracle.windows[n-1])%window
		if toTurn < 0 || toTurn > window {
			toTurn = 0
		}
	}
	return rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, horizon/4), rapid.Int64Range(0, horizon/4), rapid.Int64Range(0, horizon),
		rapid.Int64Range(0, 2*window), rapid.SampledFrom([]int64{1, toTurn, max(0, toTurn-1), toTurn + 1, max(0, toTurn-horizon/2)})).Draw(t, "advance")
}

// TestNothingPassesThatTheLimitDoesNotAllow lets rapid try to break the bound, with answers
// that are slow, lost or out of order, window turns, crashes, resets, and steps of the server's
// clock. Without resets and steps forward the bound is exact. A reset makes what other
// processes hold pass besides, and so does a step for all.
func TestNothingPassesThatTheLimitDoesNotAllow(t *testing.T) {
	leased := 0
	conformance.Check(t, 6000, func(t *rapid.T) {
		w := newWorld(drawLeased(t), rapid.IntRange(1, 3).Draw(t, "processes"))
		wild := rapid.Bool().Draw(t, "wild") // with resets and steps of the clock
		for n := rapid.IntRange(20, 150).Draw(t, "steps"); n > 0; n-- {
			w.time += drawAdvance(t, w)
			p := rapid.SampledFrom(w.processes).Draw(t, "process")
			switch what := rapid.IntRange(0, 29).Draw(t, "what"); {
			case what < 14: // several hits, and their answers at once
				for i := rapid.IntRange(1, 12).Draw(t, "hits"); i > 0; i-- {
					if !p.hit(rapid.SampledFrom([]int64{1, 1, 1, 1, 3}).Draw(t, "cost")) {
						f := p.batches[len(p.batches)-1]
						w.execute(p, f)
						p.answer(f)
					} else {
						leased++
					}
				}
			case what < 16:
				p.hit(1)
			case what < 18:
				p.send(0)
			case what < 21 && len(p.batches) > 0:
				w.execute(p, rapid.SampledFrom(p.batches).Draw(t, "executed"))
			case what < 24 && len(p.batches) > 0:
				f := rapid.SampledFrom(p.batches).Draw(t, "answered")
				w.execute(p, f)
				p.answer(f)
			case what == 24 && len(p.batches) > 0:
				p.forget(rapid.SampledFrom(p.batches).Draw(t, "lost"))
			case what == 25:
				lease.Sweep(p.leases)
			case what == 26: // the process ends and another one starts
				if rapid.Bool().Draw(t, "crash") {
					p.leases = w.newSet()
					p.batches = nil
				} else {
					lease.End(p.leases)
					w.execute(p, p.send(0))
					p.leases = w.newSet()
				}
			case what == 27 && wild:
				lease.Drop(p.leases, row, false)
				for _, f := range p.batches {
					f.answers = nil // see Drop: what is under way is not taken in
				}
				w.row = algorithm.Row{}
				w.time++ // no row is deleted and made again within a microsecond
				slack := w.oracle.slack + w.held() + w.returning()
				*w.oracle = oracle{limit: w.limit, slack: slack}
			case what == 28 && wild:
				by := rapid.SampledFrom([]int64{-1, 1}).Draw(t, "direction") * rapid.Int64Range(0, 3*w.limit.Window.Microseconds()).Draw(t, "by")
				if by > 0 {
					w.oracle.slack += w.held() + w.limit.Events // as without leases, a step lets a window pass
				} else {
					w.oracle.slack += w.limit.Events
				}
				w.step += by
			}
			if w.oracle.wrong != nil {
				t.Fatalf("%+v: %v", *w.limit, w.oracle.wrong)
			}
		}
	})
	t.Logf("%d hits were decided by leases", leased)
	if leased < 1000 {
		t.Error("too few hits were decided by leases")
	}
}

// TestNothingIsHeldLongAfterTheLastHit: two horizons after the last hit the row says exactly what
// was admitted, if batches are answered quickly.
func TestNothingIsHeldLongAfterTheLastHit(t *testing.T) {
	held := 0
	conformance.Check(t, 1500, func(t *rapid.T) {
		w := newWorld(drawLeased(t), rapid.IntRange(1, 3).Draw(t, "processes"))
		horizon := lease.Horizon(w.processes[0].leases, w.limit)
		round := func() {
			for _, p := range w.processes {
				lease.Sweep(p.leases)
				if lease.Due(p.leases) {
					f := p.send(0)
					w.execute(p, f)
					p.answer(f)
				}
			}
		}
		for n := rapid.IntRange(5, 100).Draw(t, "steps"); n > 0; n-- {
			w.time += rapid.Int64Range(0, horizon/8).Draw(t, "advance")
			p := rapid.SampledFrom(w.processes).Draw(t, "process")
			for i := rapid.IntRange(0, 12).Draw(t, "hits"); i > 0; i-- {
				if !p.hit(1) {
					f := p.batches[len(p.batches)-1]
					w.execute(p, f)
					p.answer(f)
				}
			}
			round()
		}
		if w.held() > 0 {
			held++
		}
		closes := rapid.Bool().Draw(t, "closes")
		for i := 0; i < 16 && !closes; i++ {
			w.time += horizon / 8
			round()
		}
		if closes {
			for _, p := range w.processes {
				lease.End(p.leases)
			}
			round()
		}
		if n := w.held(); n != 0 {
			t.Fatalf("%+v: %d units are held", *w.limit, n)
		}
		free, _ := algorithm.Of(w.limit).Look(w.limit, &w.row, w.server())
		if want := w.oracle.free(w.server()); free != want || w.oracle.wrong != nil {
			t.Fatalf("%+v: %d are left in the row, and %d by what was admitted; %v", *w.limit, free, want, w.oracle.wrong)
		}
	})
	t.Logf("%d schedules ended with units held", held)
	if held < 30 {
		t.Errorf("only %d schedules ended with units held", held)
	}
}
