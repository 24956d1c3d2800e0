package serve

import (
	"errors"
	"net/http"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Next says what follows Begin.
type Next uint8

// The values of Next.
const (
	Ended  Next = iota // nothing is to be decided: End follows
	Taking             // Take follows
	Queued             // Take follows, or a queue, which has the whole timeout
)

// Decide decides a request, and sets its Outcome. The proxy then responds, serves the request with the
// context of Flight, and calls Settling.End and Flight.End after the response. An error is that of
// Zone.Match.
func Decide(s *Site, q *Request) error {
	next, err := Begin(s, q)
	if err != nil {
		return err
	}
	if next != Ended {
		Take(s, q)
	}
	End(s, q)
	return nil
}

// Begin asks the policy about a request, and then finds the limits of the configuration that apply to it: a
// matcher can use what the policy says.
func Begin(s *Site, q *Request) (Next, error) {
	q.Began = time.Now()
	q.Outcome = respond.Outcome{}
	q.Hits = q.Hits[:0]
	q.Decisions = q.Decisions[:0]
	q.Limits = s.none
	exempt := len(s.Exempt) > 0 && isExempt(s, q)
	next := Queued
	if s.Policy != nil {
		if ask(s, q) && isLate(s, q) {
			next = Taking
		}
		if q.failure != nil {
			next = Taking
		}
		if q.Outcome.Status != 0 {
			return Ended, nil
		}
	}
	if !exempt {
		q.Limits = s.all
		if s.matches {
			if err := match(s, q); err != nil {
				return Ended, err
			}
		}
	}
	if len(q.Limits.Hits) == 0 && len(q.Verdict.Hits) == 0 && s.Hits == nil {
		return Ended, nil
	}
	if q.Limits.InFlight || q.Asked && !q.Verdict.Simple && hasSlots(q.Verdict.Hits) {
		q.Flight = NewFlight(q.HTTP.Context())
	}
	return next, nil
}

// isLate reports whether the policy has delayed a request. A tenth of its time changes nothing.
func isLate(s *Site, q *Request) bool { return time.Since(q.Began) > s.Timeout/10 }

// Take makes the hits of a request and takes them, in the rest of its time. After a failure of the policy,
// the limits that hold nevertheless have the whole time.
func Take(s *Site, q *Request) {
	addHits(s, q)
	began := time.Time{}
	if s.Policy != nil && q.failure == nil && isLate(s, q) {
		began = q.Began
	}
	q.Outcome = take(s, q, began)
	q.Outcome.Ahead = s.Clock.Ahead(q.Decisions, time.Now())
	if s.reopen != nil && errors.Is(q.Outcome.Err, ratelimit.ErrClosed) {
		s.reopen(func(again *host.Handle) {
			other := Site{Timeout: s.Timeout, OnError: s.OnError}
			other.UseStore(again.Limits.Store)
			q.Outcome = take(&other, q, time.Time{})
		})
	}
	taken(s, q)
}

// Fail is Take for a request without a decision of its queue because of an error.
func Fail(s *Site, q *Request, err error) {
	if errors.Is(err, ratelimit.ErrClosed) {
		Take(s, q)
		return
	}
	addHits(s, q)
	q.Outcome = TakeLocal(s, q, err)
	taken(s, q)
}

// addHits makes the hits of a request: those of the limits of the configuration, and those of the policy.
func addHits(s *Site, q *Request) {
	q.Stored = false
	q.Hits = append(q.Hits[:0], q.Limits.Hits...)
	for i, z := range q.Limits.Zones {
		hit := &q.Hits[i]
		SetKey(z, q, hit)
		if hit.Key == "" {
			WarnEmpty(s, z)
		}
		if q.Limits.Varies {
			SetCost(z, q, hit)
		}
	}
	if s.Hits != nil {
		q.Hits = append(q.Hits, s.Hits(q.HTTP)...)
	}
	q.Hits = append(q.Hits, q.Verdict.Hits...)
	q.Decisions = q.Decisions[:0]
	for i := 0; i < len(q.Hits); i++ {
		q.Decisions = append(q.Decisions, ratelimit.Decision{})
	}
	if q.Flight != nil {
		q.Flight.Attach(q.Hits)
	}
}

// taken follows a decision, or the failure to decide. The log has at most a line a second for all handlers on
// a database, and one when the database answers again.
func taken(s *Site, q *Request) {
	if s.Watcher != nil {
		s.Watcher.Decided(q)
	}
	if q.Outcome.Err != nil {
		LogNoDecision(s, q)
	} else if s.Outage != nil && s.Outage.IsUnderWay() {
		s.Outage.Ended(s.Log, q.Decisions, time.Now())
	}
	if q.failure != nil && q.Outcome.Status == 0 {
		q.Outcome.Err = q.failure // the limits let the request pass, without what the policy would have said
	}
}

// LogNoDecision logs that no decision on a request was possible, and what happens to such requests.
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

// Delivered is Take for a request that a queue has decided: the hits and decisions of Call become those of
// the request.
func Delivered(q *Request) {
	q.Hits = q.Call.Hits
	q.Decisions = q.Call.Decisions
	q.Stored = true
	if !q.Asked {
		q.Began = q.Call.Arrived
	}
	q.Outcome = Judge(q)
	q.Outcome.Ahead = q.Site.Clock.Ahead(q.Decisions, time.Now())
}

// End counts and records a request, and prepares its settlement.
func End(s *Site, q *Request) {
	if !q.Asked && len(q.Hits) == 0 {
		return
	}
	if q.Outcome.Err != nil {
		s.Report.Undecided()
	} else {
		s.Report.Count(q.Outcome.Status == 0, q.Hits, q.Decisions)
	}
	if q.Outcome.Status == 0 && len(q.Hits) > 0 && (q.Limits.Settled || q.Asked && !q.Verdict.Simple) {
		q.Settling = NewSettling(s, q)
	}
	if s.History != nil {
		Record(s, q)
	}
}

// Respond sets the headers of the response to a request that was decided. For a refusal it sets Body.
func Respond(s *Site, q *Request, h http.Header) {
	respond.SetFields(h, s.Fields, s.Salt, &q.Outcome, q.Hits, q.Decisions)
	q.Admitted = q.Outcome.Status == 0
	if !q.Admitted {
		q.Body = q.Outcome.Content(h)
	}
}
