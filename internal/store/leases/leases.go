// Package leases charges units of limits with a Lease in advance, see package lease, and gives back those that were not
// used. The units travel with the batches of requests:
//
//   - What is to be given back comes before the requests, so that it is there for them.
//   - What is to be charged comes after them, and the row may grant a part of it. Transactions of several limits carry no
//     such hits, because a transaction fails if a row grants less than was asked for.
//
// No request waits for a lease. If no batch comes, one without requests is sent.
package leases

import (
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/store/own"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Leases are the leases of a store.
type Leases struct {
	Set      *lease.Set
	database *own.Database

	GiveBack, Charge *own.Kind
}

// charging is what is known of a call that charges units.
type charging struct {
	ask  *lease.Ask
	sent int64 // the lease clock, read before the statement was sent
}

// New returns no leases yet, and no more than most of them. horizon is that of limits with long windows.
func New(d *own.Database, most int, horizon time.Duration) *Leases {
	l := &Leases{database: d, GiveBack: &own.Kind{Statement: own.Adjust},
		Charge: &own.Kind{Statement: own.Charge, Last: true}}
	l.Set = lease.New(lease.Options{Max: most, Horizon: horizon, Maintain: func() { l.maintain() }})
	return l
}

// maintain sends what no other batch takes, and ends leases. It runs while there are leases.
func (l *Leases) maintain() {
	d := l.database
	d.Report(batch.PanicError(func() {
		lease.Maintain(l.Set, func() bool { return d.Closing.Err() == nil }, func() {
			if d.Unavailable() == nil {
				d.Send()
			}
		})
	}))
}

// Calls takes the calls that go with a batch. It skips a row that another transaction has locked, so that no request
// has to wait for the row: the units of this row are lost. It ends the leases of the rows on which the batch has refunds
// or resets.
func (l *Leases) Calls(b own.Batch) []*own.Call {
	var calls []*own.Call
	given := false
	b.Given(func(h *ratelimit.Hit, reset bool) {
		given = true
		l.Drop(h, reset)
	})
	sent := lease.Now(l.Set)
	asks, returns := lease.Work(l.Set, given)
	for i := range returns {
		back := &returns[i]
		if !b.Locked(back.Row) {
			calls = append(calls, &own.Call{Kind: l.GiveBack, Row: back.Row, Limit: back.Limit, N: back.Units.N,
				Claim: back.Units.Claim})
		}
	}
	for i := range asks {
		ask := &asks[i]
		if !b.Locked(ask.Row) {
			calls = append(calls, &own.Call{Kind: l.Charge, Row: ask.Row, Limit: ask.Limit, N: ask.N,
				Of: &charging{ask, sent}})
		}
	}
	return calls
}

// Drop ends the lease of the row of a hit, which has its key as it is stored. The hit resets the row, or gives
// something back: the units go back before that, since a refund that finds them charged would give back more than was
// used.
func (l *Leases) Drop(h *ratelimit.Hit, reset bool) {
	lease.Drop(l.Set, lease.RowOf(h.Limit, h.Key), !reset)
}

// End ends calls. Units of which it is not known whether they were given back are lost.
func (l *Leases) End(calls []*own.Call, _ error) {
	for _, c := range calls {
		if c.Kind == l.GiveBack {
			continue
		}
		if c.Err != nil {
			lease.Postpone(l.Set, c.Row)
			continue
		}
		of := c.Of.(*charging)
		a := answer(c.Row, c.Limit, c.View)
		a.Ask = of.ask
		if c.Granted > 0 {
			life, claim := algorithm.Of(c.Limit).Lease(c.Limit, &c.View.Row, c.View.Now, lease.MostLife(l.Set, c.Limit))
			a.Leased = lease.Units{N: c.Granted, Ends: of.sent + life, Claim: claim}
		}
		lease.Update(l.Set, a)
	}
}

// Learn updates the lease of a row that requests were charged to. refused is whether one of them did not pass.
func (l *Leases) Learn(row lease.RowID, v *algorithm.View, refused bool) {
	a := answer(row, v.Limit, v)
	a.Refused = refused
	lease.Update(l.Set, a)
}

// answer is what a statement says of a row.
func answer(row lease.RowID, limit *ratelimit.Limit, v *algorithm.View) *lease.Answer {
	return &lease.Answer{Row: row, Limit: limit, Free: v.Free, Reset: time.UnixMicro(v.Reset),
		Now: algorithm.ChargedAt(limit, &v.Row, v.Now)}
}

// AddHeld adds the units that are held to the Remaining of decisions. sent is the lease clock, read before the
// statements were sent: Remaining may have later units already.
func (l *Leases) AddHeld(hits []ratelimit.Hit, decisions []ratelimit.Decision, sent int64) {
	for i := range decisions {
		h := &hits[i]
		if h.Limit.Lease <= 0 {
			continue
		}
		if held := lease.HeldSince(l.Set, lease.RowOf(h.Limit, h.Key), sent); held > 0 {
			decisions[i].Remaining = algorithm.Remaining(decisions[i].Limit, decisions[i].Remaining+held)
		}
	}
}

// Close gives all units back, before the store is closed. It tries for a time.
func (l *Leases) Close(most time.Duration) {
	lease.End(l.Set)
	for until := time.Now().Add(most); time.Now().Before(until) && l.database.Unavailable() == nil; {
		switch {
		case lease.Due(l.Set):
			l.database.Send()
		case l.database.Busy():
			time.Sleep(time.Millisecond) // a batch in flight may bring more units
		default:
			return
		}
	}
}
