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
// the request with Flight.Context and calls Settling.End and Flight.End after the response. An error comes
// from Zone.Match.
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

// Begin evaluates the policy for a request, and then finds the limits of the configuration that apply. The
// policy comes first, because a matcher can use the verdict. waits reports whether the store has to decide
// the request: the caller then calls Fill. At the end, the caller always calls Deliver. Callers set Site and
// Began before Begin.
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
	exempt := false
	if len(s.Exempt) > 0 {
		address, assumed := s.Address(q.HTTP)
		exempt = !assumed && ContainsAddr(s.Exempt, address)
	}
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
		q.Flight = &Flight{}
		q.Flight.Context, q.Flight.cancel = context.WithCancel(q.HTTP.Context())
	}
	if q.failure != nil {
		q.Arrived = time.Now() // after the policy failed, the limits have the whole timeout
	}
	return true, nil
}

// FillCalls calls Fill for the requests that own the calls of a queue.
func FillCalls(calls []*batch.Call) {
	requests := make([]*Request, len(calls))
	for i, c := range calls {
		requests[i] = c.Owner.(*Request)
	}
	Fill(requests)
}

// Fill sets the hits of requests and of their Calls: first the hits of the configuration, then the hits of
// the policy. If a panic ends Fill, the current request has no hits.
func Fill(requests []*Request) {
	for _, q := range requests {
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
			if f.Varies && z.cost != nil {
				hits[i].Cost = ParseCost(z.cost.Of(q))
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
			// Hits of the policy that are Independent come last.
			c.HasIndependent = f.Shadow || q.Asked && len(hits) > 0 && hits[len(hits)-1].Independent
		}
	}
}

// background is the context of all decisions, instead of the request's context. The request's context ends
// when the client closes its connection, which would fail the whole batch and be logged as a failure of the
// database. The store bounds the wait, see health.Patience.
var background = context.Background()

// Take gets decisions on the hits of a request from the store, and sets its Decisions or Err. If the policy
// took more than a tenth of the timeout, the store gets only the rest of health.Patience.
func Take(q *Request) {
	q.Decisions = append(q.Decisions[:0], make([]ratelimit.Decision, len(q.Hits))...)
	if len(q.Hits) == 0 {
		return
	}
	s := q.Site
	ctx := background
	if q.Asked && time.Since(q.Arrived) > s.Timeout/10 {
		within, cancel := health.WithDeadline(ctx, q.Arrived, s.Timeout)
		defer cancel()
		ctx = within
	}
	q.Err = s.Store.Take(ctx, s.Timeout, q.Hits, q.Decisions)
	if s.reopen != nil && errors.Is(q.Err, ratelimit.ErrClosed) {
		s.reopen(func(again *host.Handle) {
			q.Err = again.Limits.Store.Take(ctx, s.Timeout, q.Hits, q.Decisions)
		})
	}
}

// DeliverCalls passes the decisions of a queue's calls to the requests that own them, and calls Deliver. It
// skips calls that a closed store refused, for which Take runs next.
func DeliverCalls(calls []*batch.Call) {
	delivered := make([]*Request, 0, len(calls))
	for _, c := range calls {
		q := c.Owner.(*Request)
		if c.Err == nil {
			q.Decisions = c.Decisions
		} else if errors.Is(c.Err, ratelimit.ErrClosed) {
			continue
		}
		q.Err = c.Err
		delivered = append(delivered, q)
		for i := range c.Hits {
			c.Hits[i].Key = "" // a key may keep the memory of a long request
			c.Hits[i].Subject = ""
		}
	}
	Deliver(delivered)
}

// Deliver ends requests on one database, which have Decisions, an Err, or nothing to decide. It sets their
// outcomes, counts and records them, prepares their settlements, and responds to requests with a Writer.
// Frequent requests of Traefik take one loop, because the interpreter takes long for each call. With
// deliverOne for all of them, a request takes 2.4 times the processor time.
func Deliver(requests []*Request) {
	var recorded, answered []*Request
	var responses []respond.Response
	if len(requests) == 0 {
		return
	}
	now := time.Now()
	first := requests[0].Site // all sites share its database
	ahead := first.Clock.Ahead(requests[0].Decisions, now)
	outage := first.Outage != nil && first.Outage.IsUnderWay()
	for _, q := range requests {
		if q.Delivered {
			continue // after a panic, a queue delivers all calls again
		}
		s := q.Site
		if outage && q.Err == nil {
			s.Outage.Ended(s.Log, q.Decisions, now)
		}
		if !q.waited || q.Err != nil || q.Writer == nil || !q.Limits.Simple ||
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
			q.Hits[i].Key = "" // as in DeliverCalls
			q.Hits[i].Subject = ""
		}
	}
}

// deliverOne sets the outcome of any request, counts it, prepares its settlement, and responds.
func deliverOne(q *Request, ahead int64) {
	s := q.Site
	if q.waited {
		if q.Err != nil {
			q.Decisions = make([]ratelimit.Decision, len(q.Hits))
			q.Outcome = TakeLocal(s, q, q.Err)
			q.Err = q.Outcome.Err
		} else {
			q.Outcome = Judge(q)
		}
		q.Outcome.Ahead = ahead
		if q.Outcome.Err != nil {
			for q.Outcome.Hit < len(q.Hits) && q.Hits[q.Outcome.Hit].Independent {
				q.Outcome.Hit++
			}
			LogNoDecision(s, q)
		}
		if q.failure != nil && q.Outcome.Status == 0 {
			q.Outcome.Err = q.failure // the limits let the request pass, but the policy could not decide
		}
	}
	if q.Asked || len(q.Hits) > 0 {
		if q.Outcome.Err != nil {
			s.Report.Undecided(q.Outcome.Status == 0)
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

// Respond sets the headers of the response to a decided request, and Admitted. For a refusal it sets Body.
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

// LogNoDecision logs that no decision on a request was possible, and whether requests without a decision
// pass. It logs at most a line a second for all handlers on a database. Outage.Ended logs the end of the
// outage.
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
