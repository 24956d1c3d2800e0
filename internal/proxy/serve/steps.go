package serve

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Decide decides a request, sets its Outcome, and responds if the request has a Writer. The proxy then serves
// the request with the context of Flight, and calls Settling.End and Flight.End after the response. An error
// is that of Zone.Match.
func Decide(s *Site, q *Request) error {
	q.Site = s
	q.Began = time.Now()
	waits, err := Begin(q)
	if err != nil {
		return err
	}
	if waits {
		Fill([]*Request{q})
		Take(q)
	}
	Deliver([]*Request{q})
	return nil
}

// Begin asks the policy about a request, and finds the limits of the configuration that apply to it: a
// matcher can use what the policy says. It reports whether the store has to decide the request: then Fill
// follows. Deliver follows in any case. Site and Began are set.
func Begin(q *Request) (waits bool, err error) {
	s := q.Site
	q.Outcome = respond.Outcome{}
	q.Err = nil
	q.Delivered = false
	q.waited = false
	q.Hits = q.Hits[:0]
	q.Decisions = q.Decisions[:0]
	q.Limits = s.none
	q.Arrived = q.Began
	exempt := len(s.Exempt) > 0 && isExempt(s, q)
	if s.Policy != nil {
		ask(s, q)
		if q.Outcome.Status != 0 {
			return false, nil
		}
	}
	if !exempt {
		q.Limits = s.all
		if s.matches {
			if err := match(s, q); err != nil {
				return false, err
			}
		}
	}
	if len(q.Limits.Hits) == 0 && len(q.Verdict.Hits) == 0 && s.Hits == nil {
		return false, nil
	}
	if q.Limits.InFlight || q.Asked && !q.Verdict.Simple && hasSlots(q.Verdict.Hits) {
		q.Flight = NewFlight(q.HTTP.Context())
	}
	if q.failure != nil {
		q.Arrived = time.Now() // the limits that hold nevertheless have the whole time
	}
	return true, nil
}

// Filled is Fill for the calls of a queue, which requests own.
func Filled(calls []*batch.Call) {
	all := make([]*Request, len(calls))
	for i, c := range calls {
		all[i] = c.Owner.(*Request)
	}
	Fill(all)
}

// Fill makes the hits of requests and of their Calls: those of the limits of the configuration, and those of
// the policy. After a panic, a request has none.
func Fill(all []*Request) {
	for _, q := range all {
		f := q.Limits
		q.waited = true
		q.Delivered = false
		q.Err = nil
		hits := q.Hits[:0]
		q.Hits = hits
		hits = append(hits, f.Hits...)
		for i, z := range f.Zones {
			hits[i].Key = FrequentKey(z, q.HTTP)
			if hits[i].Key == "" {
				setKey(z, q, &hits[i])
			}
			if f.Varies {
				setCost(z, q, &hits[i])
			}
		}
		if q.Site.Hits != nil {
			hits = append(hits, q.Site.Hits(q.HTTP)...)
		}
		if q.Asked {
			hits = append(hits, q.Verdict.Hits...)
		}
		if q.Flight != nil {
			q.Flight.Attach(hits)
		}
		q.Hits = hits
		if c := q.Call; c != nil {
			c.Hits = append(c.Hits[:0], hits...)
			c.Decisions = c.Decisions[:0]
			c.Err = nil
			// Hits of the policy that are Apart come last.
			c.Apart = f.Shadow || q.Asked && len(hits) > 0 && hits[len(hits)-1].Apart
		}
	}
}

// Take has the store decide the hits of a request, and sets its Decisions or Err.
func Take(q *Request) {
	q.Decisions = append(q.Decisions[:0], make([]ratelimit.Decision, len(q.Hits))...)
	if len(q.Hits) == 0 {
		return
	}
	s := q.Site
	q.Err = take(s.Store, q)
	if s.reopen != nil && errors.Is(q.Err, ratelimit.ErrClosed) {
		s.reopen(func(again *host.Handle) { q.Err = take(again.Limits.Store, q) })
	}
}

// background is the context of all decisions, instead of the context of a request: a client that closes its
// connection must not fail the batch of its request, and its end would be logged as a failure of the
// database. The timeout bounds the wait.
var background = context.Background()

// take asks a store in the rest of the time of a request. A tenth of it changes nothing.
func take(from ratelimit.Store, q *Request) error {
	ctx := background
	timeout := q.Site.Timeout
	if q.Asked && time.Since(q.Arrived) > timeout/10 {
		within, cancel := health.WithDeadline(ctx, q.Arrived, timeout)
		defer cancel()
		ctx = within
	}
	return from.Take(ctx, timeout, q.Hits, q.Decisions)
}

// Delivered is Deliver for calls of a queue, with their decisions. The owners of calls are requests. A call
// of a store that is closed is left to Take.
func Delivered(calls []*batch.Call) {
	all := make([]*Request, 0, len(calls))
	for _, c := range calls {
		q := c.Owner.(*Request)
		if c.Err == nil {
			q.Decisions = c.Decisions
		} else if errors.Is(c.Err, ratelimit.ErrClosed) {
			continue
		}
		q.Err = c.Err
		all = append(all, q)
		for i := range c.Hits {
			c.Hits[i].Key = "" // it may be a part of a long request, which must not be kept
			c.Hits[i].Subject = ""
		}
	}
	Deliver(all)
}

// Deliver ends requests on one database, which have their decisions, an Err, or nothing to decide: it makes
// their outcomes, counts and records them, prepares their settlements, and responds to those with a Writer.
// The frequent requests of Traefik take one loop, because each call takes long in the interpreter: with
// deliverOne for all of them, a request takes 2.4 times the processor time.
func Deliver(all []*Request) {
	var recorded, answered []*Request
	var responses []respond.Response
	if len(all) == 0 {
		return
	}
	now := time.Now()
	first := all[0].Site // the others share its database
	ahead := first.Clock.Ahead(all[0].Decisions, now)
	outage := first.Outage != nil && first.Outage.IsUnderWay()
	for _, q := range all {
		if q.Delivered {
			continue // a queue delivers again after a panic
		}
		s := q.Site
		if outage && q.Err == nil {
			s.Outage.Ended(s.Log, q.Decisions, now)
		}
		if !q.waited || q.Err != nil || q.Writer == nil || s.Watcher != nil || !q.Limits.Simple ||
			q.Asked && !q.Verdict.Simple || len(q.Hits) == 0 || q.failure != nil {
			deliverOne(q, ahead)
			if s.History != nil && (q.Asked || len(q.Hits) > 0) {
				recorded = append(recorded, q)
			}
			q.Delivered = true
			continue
		}
		at := 0
		for i := range q.Decisions {
			if !q.Decisions[i].Allowed {
				at, _ = respond.Tightest(q.Hits, q.Decisions)
				break
			}
			if q.Decisions[i].Remaining < q.Decisions[at].Remaining {
				at = i
			}
		}
		d := &q.Decisions[at]
		answered = append(answered, q)
		responses = append(responses, respond.Response{Header: q.Writer.Header(), Decision: d, Body: ""})
		if s.History != nil {
			q.Outcome = respond.Outcome{Hit: at, Decision: d}
			recorded = append(recorded, q)
		}
		q.Outcome.Status = 0
		if !d.Allowed {
			q.Outcome.Status = http.StatusTooManyRequests
		}
	}
	if recorded != nil {
		record(recorded, now)
	}
	if answered == nil {
		return
	}
	respond.SetAllHeaders(responses, ahead)
	for i, q := range answered {
		q.Writer = nil
		q.HTTP = nil
		q.Body = responses[i].Body
		q.Admitted = q.Body == ""
		q.Delivered = true
		q.Site.Report.Count(q.Admitted, q.Hits, q.Decisions)
		for i := range q.Hits {
			q.Hits[i].Key = "" // as in Delivered
			q.Hits[i].Subject = ""
		}
	}
}

// deliverOne makes the outcome of any request, counts it, prepares its settlement, and responds.
func deliverOne(q *Request, ahead int64) {
	s := q.Site
	if q.waited {
		if q.Err != nil {
			q.Decisions = make([]ratelimit.Decision, len(q.Hits))
			q.Outcome = TakeLocal(s, q, q.Err)
		} else {
			q.Outcome = Judge(q)
		}
		q.Outcome.Ahead = ahead
		if s.Watcher != nil {
			s.Watcher.Decided(q)
		}
		if q.Outcome.Err != nil {
			LogNoDecision(s, q)
		}
		if q.failure != nil && q.Outcome.Status == 0 {
			q.Outcome.Err = q.failure // the limits let it pass, without what the policy would have said
		}
	}
	if q.Asked || len(q.Hits) > 0 {
		if q.Outcome.Err != nil {
			s.Report.Undecided()
		} else {
			s.Report.Count(q.Outcome.Status == 0, q.Hits, q.Decisions)
		}
	}
	if q.Outcome.Status == 0 && len(q.Hits) > 0 && (q.Limits.Settled || q.Asked && !q.Verdict.Simple) {
		q.Settling = NewSettling(s, q)
	}
	q.Admitted = q.Outcome.Status == 0
	if q.Writer != nil {
		Respond(q)
	}
}

// Respond sets the fields of the response to a request that was decided. For a refusal it sets Body.
func Respond(q *Request) {
	h := q.Writer.Header()
	s := q.Site
	respond.SetFields(h, s.Fields, s.Salt, &q.Outcome, q.Hits, q.Decisions)
	q.Body = ""
	q.Admitted = q.Outcome.Status == 0
	if !q.Admitted {
		q.Body = q.Outcome.Content(h)
	}
}

// LogNoDecision logs that no decision on a request was possible, and what happens to such requests. The log
// has at most a line a second for all handlers on a database, and one when the database answers again.
func LogNoDecision(s *Site, q *Request) {
	line := host.Line{Level: host.Error, Text: "no decision: refusing requests", Err: q.Outcome.Err}
	if q.Outcome.Status == 0 {
		line.Level = host.Warn
		line.Text = "no decision: letting requests pass"
	}
	if s.Outage != nil {
		s.Outage.Failed(s.Log, line, true, time.Now())
	}
}
