package engine

import (
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/store/slots"
	"github.com/pgratelimit/pg-ratelimit/internal/store/statement"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// defaultSettleWait is the maximum time that a settlement waits for a request's batch.
const defaultSettleWait = 5 * time.Millisecond

// Adjust corrects a charge in the background. It does nothing if the database did not make the charge.
func (e *Engine) Adjust(c *batch.Charge) {
	if c.Source != ratelimit.FromPostgres && c.Source != ratelimit.FromLease ||
		c.Limit.Algorithm == ratelimit.InFlight {
		return
	}
	key := strings.Clone(c.Key) // it may be a part of a long request
	e.addJob(&batch.Job{Hit: ratelimit.Hit{Limit: c.Limit, Key: key, Cost: c.RealUnits - c.Charged},
		Claim: c.DecidedAt, Window: algorithm.WindowOf(c.Limit, c.DecidedAt, c.Reset),
		End: func(_ int64, err error) { e.settled(1, err) }},
		e.settleWait)
}

// Charge charges, in the background, units of a durable limit that were admitted without the database. It
// charges at most the free quota, and creates a missing row. end is called once with the charged units. If it
// gets an error, the database may have charged all units.
func (e *Engine) Charge(l *ratelimit.Limit, key string, units int64, end func(charged int64, err error)) {
	e.addJob(&batch.Job{Hit: ratelimit.Hit{Limit: l, Key: key, Cost: units}, Partial: true,
		End: func(charged int64, err error) {
			e.settled(1, err)
			end(charged, err)
		}}, e.settleWait)
}

// writeSettlements returns the statements that settle charges for a name on limits that reserve: one for
// each algorithm and table, in the order in which all processes lock rows. One loop has all of a charge,
// because an interpreter would pay for each call.
func (e *Engine) writeSettlements(charges []*batch.Charge, name int64, sync bool,
	lockWait time.Duration) []*pgdb.Statement {
	p := newPlan(nil, len(charges), false)
	for _, c := range charges {
		id := lease.RowID{Durable: c.Durable, Prefix: c.Prefix, Key: c.Key}
		one := p.latest[id]
		if one == nil {
			one = &entry{kind: statement.Settle, id: id, first: name,
				view: algorithm.View{Limit: c.Limit}}
			p.latest[id] = one
			g := p.recent[c.Limit]
			if g == nil {
				g = groupFor(p, 0, statement.Key{Kind: statement.Settle,
					Definition: algorithm.CountingOf(c.Limit), Durable: c.Durable, Sync: sync}, false)
				p.recent[c.Limit] = g
			}
			g.entries = append(g.entries, one)
		}
		one.n += c.RealUnits
		one.held += c.Held
		if one.rest += c.Excess; one.rest >= 1000 {
			one.rest -= 1000
			one.n--
		}
	}
	sortGroups(p.groups)
	return p.write(e.texts, 0, lockWait)
}

// job is a job of a batch while it is decided. The worker owns it.
type job struct {
	*batch.Job
	position position
}

// collectJobs moves waiting jobs into the batch. It fails those on rows with a recent lock timeout.
func (w *work) collectJobs(requests []*request) {
	w.engine.refundLeases()
	idle := true
	for _, r := range requests {
		idle = idle && len(r.Hits) == 0
	}
	var locked []*batch.Job
	for _, j := range batch.Collect(w.backlog, idle, w.hasRefunds) {
		if lease.HadLockTimeout(w.engine.rows, rowOf(&j.Hit)) {
			j.Err = errLocked
			locked = append(locked, j)
		} else {
			w.jobs = append(w.jobs, &job{Job: j})
		}
	}
	batch.End(w.backlog, locked, nil)
}

// The values of addJobs.after, as of batch.Job.After.
const beforeRequests, afterRequests = false, true

// addJobs plans the jobs of a batch that come after its requests, or those that come before.
func addJobs(p *plan, jobs []*job, after bool) {
	for _, j := range jobs {
		if j.After != after {
			continue
		}
		h := &j.Hit
		switch {
		case j.Partial:
			e := newEntry(statement.Charge, h, 1) // hits of one unit each, because a row may grant a part
			e.isolated = j.Isolated
			j.position = addEntry(p, e)
			e = j.position.entry
			e.n += h.Cost - 1
			if j.Row != nil {
				e.row = j.Row
				e.leaseHits += h.Cost
				p.remembered = true
			}
		case h.Limit.Algorithm == ratelimit.InFlight:
			j.position.entry = addRelease(p, slots.Range{Limit: h.Limit, Row: rowOf(h), First: j.Claim,
				N: h.Cost}, j.Isolated)
		default:
			e := newEntry(statement.Refund, h, -h.Cost)
			e.window = j.Window
			e.claim = j.Claim
			e.isolated = j.Isolated
			j.position = addEntry(p, e)
		}
	}
}

// applyJobs ends jobs. A row grants the hits of an entry in the order of the plan, so a job gets the units
// that the hits before it have left.
func (w *work) applyJobs() {
	for _, j := range w.jobs {
		e := j.position.entry
		j.Err = e.err
		if j.Granted = e.granted - j.position.nth; j.Granted < 0 {
			j.Granted = 0
		}
		if j.Granted > j.Hit.Cost {
			j.Granted = j.Hit.Cost
		}
	}
	w.endJobs(nil)
}

// endJobs ends the jobs of a batch. It clears the remembered refusals of the rows that they refund.
func (w *work) endJobs(err error) {
	jobs := make([]*batch.Job, 0, len(w.jobs))
	for _, j := range w.jobs {
		if j.Hit.Cost < 0 {
			lease.ClearRefusals(w.engine.rows, rowOf(&j.Hit))
		}
		jobs = append(jobs, j.Job)
	}
	w.jobs = nil
	batch.End(w.backlog, jobs, err)
}
