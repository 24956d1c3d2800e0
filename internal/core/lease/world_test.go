package lease_test

import (
	"fmt"
	"hash/maphash"
	"slices"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// world simulates one row and the processes that have leases on it. Package algorithm changes the row, in
// place of Postgres; other tests show that its results are those of the SQL.
type world struct {
	limit       *ratelimit.Limit
	time        int64 // the true time, which all monotonic clocks measure
	serverAhead int64 // the server's clock minus time
	row         algorithm.Row
	processes   []*process
	oracle      *oracle
}

// server returns the server's time.
func (w *world) server() int64 { return w.time + w.serverAhead }

// process is a simulated process: a Set and its batches in flight.
type process struct {
	w       *world
	leases  *lease.Set
	plugin  bool // the next hit comes through the plugin
	batches []*sentBatch
	refunds []lease.Refund // the refunds of the next batch
}

// sentBatch is a batch that was sent and not answered. executed is true if the server has run it.
type sentBatch struct {
	sent      int64
	cost      int64 // the cost of the hit that waits; 0 without one
	requested int64 // the units to charge for the lease
	row       *lease.Cached
	refunds   []lease.Refund
	executed  bool

	// The answer, once the batch was executed.
	admitted bool
	answers  []lease.Answer
}

var row = lease.RowID{Prefix: "p", Key: "k"}

func newWorld(l *ratelimit.Limit, processes int) *world {
	w := &world{limit: l, serverAhead: conformance.NewClock().Micro, oracle: &oracle{limit: l}}
	for i := 0; i < processes; i++ {
		p := &process{w: w}
		p.restart()
		w.processes = append(w.processes, p)
	}
	return w
}

// restart starts the process again without leases. Refunds that were not sent are lost.
func (p *process) restart() {
	p.refunds = nil
	p.leases = lease.New(lease.Options{Max: 10, Horizon: time.Second, MinHits: 4,
		Clock: func() int64 { return p.w.time }})
}

// take calls lease.Use as a store does, after it has counted the hit in the demand, on which the sizes of
// leases depend.
func take(rows *lease.Set, hits []ratelimit.Hit, decisions []ratelimit.Decision) ([]*lease.Cached, bool) {
	index := (rows.Hash(rows.Seed, hits[0].Key) + rows.Hash(rows.Seed, hits[0].Limit.Prefix)) % lease.Hashes
	atomic.AddInt32(&lease.Demand(rows)[index], 1)
	return lease.Use(rows, hits, decisions, nil)
}

// hit decides a hit from the process's lease and returns true, or sends it in a batch. Every second hit uses
// the code of the plugin.
func (p *process) hit(cost int64) bool {
	if p.plugin = !p.plugin; p.plugin && p.useInPlugin(cost) {
		p.w.oracle.admit(p.w.server(), cost)
		return true
	}
	hits := []ratelimit.Hit{{Limit: p.w.limit, Key: "k", Cost: cost}}
	decisions := make([]ratelimit.Decision, 1)
	rows, passed := take(p.leases, hits, decisions)
	if passed {
		p.w.oracle.admit(p.w.server(), cost)
		if !decisions[0].Allowed {
			p.w.oracle.err = fmt.Errorf("a lease refuses: %+v", decisions[0])
		}
		return true
	}
	p.sendOn(cost, rows[0])
	return false
}

// useInPlugin uses units as the interpreted plugin does, and reports whether the lease had enough.
func (p *process) useInPlugin(cost int64) bool {
	l := p.leases.Stripes[maphash.String(p.leases.Seed, row.Key)%lease.StripeCount].Rows[row]
	if l == nil || l.Limit == nil || l.Units < cost || time.Duration(p.w.time)*time.Microsecond >= l.Ends {
		return false
	}
	l.Units -= cost
	l.Used += cost
	if left := l.Rest + l.Units; left < 0 || left > p.w.limit.Capacity() {
		p.w.oracle.err = fmt.Errorf("the plugin reports %d remaining, want 0 to the capacity", left)
	}
	return true
}

// takeRefunds returns the refunds of the next batch.
func (p *process) takeRefunds() []lease.Refund {
	p.refunds = append(p.refunds, lease.Refunds(p.leases)...)
	return p.refunds
}

// send sends a batch without a hit.
func (p *process) send() *sentBatch { return p.sendOn(0, nil) }

// sweep calls Sweep, and sends a batch with the refunds that Sweep makes and the charge for the row that it
// returns.
func (p *process) sweep() *sentBatch {
	for _, r := range lease.Sweep(p.leases) {
		return p.sendOn(0, r) // there is one row
	}
	return p.send()
}

// sendOn sends a batch, with a hit on a row if cost is not 0.
func (p *process) sendOn(cost int64, r *lease.Cached) *sentBatch {
	f := &sentBatch{sent: p.w.time, cost: cost, row: r, refunds: p.takeRefunds()}
	p.refunds = nil
	if r != nil {
		_, f.requested = lease.NextCharge(p.leases, r)
	}
	p.batches = append(p.batches, f)
	return f
}

// execute runs a batch on the row.
func (w *world) execute(f *sentBatch) {
	if f.executed {
		return
	}
	f.executed = true
	now, l, d := w.server(), w.limit, algorithm.Of(w.limit)
	for _, r := range f.refunds {
		if w.row.Start != 0 || w.row.HasTokens { // a refund applies to existing rows only
			d.Adjust(l, &w.row, now, r.Units, r.Claim)
		}
	}
	if f.cost == 0 && f.requested == 0 {
		return
	}
	a := lease.Answer{Sent: f.sent, Requested: f.requested > 0}
	if f.cost > 0 {
		f.admitted = d.Charge(l, &w.row, now, 1, f.cost) == 1
		a.Refused = !f.admitted
		w.oracle.recordWindow(&w.row)
		if f.admitted {
			w.oracle.admit(now, f.cost)
		}
	}
	if f.requested > 0 {
		a.Units = d.Charge(l, &w.row, now, f.requested, 1)
		w.oracle.recordWindow(&w.row)
	}
	free, reset := d.Peek(l, &w.row, now)
	a.View = &algorithm.View{Limit: l, Row: w.row, Now: now, Free: free, Reset: reset}
	f.answers = append(f.answers, a)
}

// answer delivers the answer to a batch to its process.
func (p *process) answer(f *sentBatch) {
	for i := range f.answers {
		if f.row != nil {
			lease.Update(p.leases, f.row, &f.answers[i])
		}
	}
	p.drop(f)
}

// drop removes a batch, so that an answer to it is lost.
func (p *process) drop(f *sentBatch) {
	p.batches = slices.DeleteFunc(p.batches, func(other *sentBatch) bool { return other == f })
}

// leasedUnits returns the units that all processes have, or may get by answers that have not arrived.
func (w *world) leasedUnits() int64 {
	sum := int64(0)
	for _, p := range w.processes {
		sum += lease.Stats(p.leases).Units
		for _, f := range p.batches {
			for _, a := range f.answers {
				sum += a.Units
			}
		}
	}
	return sum
}

// unitsBeingRefunded returns the units in refunds that wait or were sent.
func (w *world) unitsBeingRefunded() int64 {
	sum := int64(0)
	for _, p := range w.processes {
		for _, f := range p.batches {
			for _, r := range f.refunds {
				sum += r.Units
			}
		}
		for _, r := range p.takeRefunds() {
			sum += r.Units
		}
	}
	return sum
}
