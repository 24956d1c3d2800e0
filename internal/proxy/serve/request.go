package serve

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/reading"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/store/registry"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Request is the state of a request on its way through a Site. A Request is reused after Release. The
// goroutine that serves the request owns it, except while Call is in a queue.
//
// The caller sets Input, Site, Began and Writer. In order, these set the rest:
//
//	FindLimits    the group of HasVerdict, Limits, Upload, Flight and Arrived
//	ReadUpload    prompt, price and free, unless a short Upload leaves them to Fill
//	Fill          Hits and Terms, and the Hits of Call
//	Take          Decisions or Err; in Traefik, the queue does
//	finishInFull  Outcome, Settling and the group of Finished; for requests of a queue, Finish
//	Release       drops all of it
//
// A refusal sets Outcome earlier, and what comes between is left out.
type Request struct {
	reading.Input
	Site *Site

	Limits    *LimitSet // the limits of the configuration that apply
	Hits      []ratelimit.Hit
	Terms     []*policy.Terms // Terms[i] describes Hits[i]
	Decisions []ratelimit.Decision
	Err       error         // the reason for missing Decisions
	Upload    *Upload       // nil if the body is not read before the decision
	Earlier   *Upload       // of an earlier handler; clientIn sets it in Traefik; nil without one
	Flight    *Flight       // nil if the request holds no slots and no Upload
	prompt    int64         // the estimated tokens of the prompt, for limits of tokens
	price     *policy.Price // of the model that Upload names; nil without one
	free      bool          // the price is Free, so that limits in money do not count the request

	// HasVerdict reports that the policy was evaluated, which sets the other fields of this group. Verdict is
	// empty if HasVerdict is false.
	HasVerdict bool
	Key, User  string // the request's API key, or without one its user
	Facts      policy.Facts
	Verdict    policy.Verdict

	Began    time.Time
	Arrived  time.Time // the start of the wait for the decision
	Outcome  respond.Outcome
	Settling *Settling // settles the request after the response; nil without a settlement

	// finishInFull or Finish sets Finished, and for a refusal Status and Body of the response. It sets the
	// headers in Writer. If Writer is nil, the proxy responds.
	Finished bool
	Released bool // set by Finish, after Release: the request passes, and needs nothing more
	Status   int
	Body     string
	Writer   http.ResponseWriter
	Conn     http.ResponseWriter // ends a slow Upload if Writer is nil

	Call *batch.Call // the request's call in a queue; nil without a queue

	failure   error  // the error of the policy's evaluation
	usesStore bool   // the store has to decide Hits
	matched   []byte // a '1' for each of Site.Zones that matches the request, else a '0'
}

// Decide decides a request, sets its Outcome, and responds if the request has a Writer. The proxy then serves
// the request with Flight.Context and calls Settling.End and Flight.End after the response. An error comes
// from Zone.Match.
func Decide(s *Site, q *Request) error {
	q.Site = s
	q.Clients = s.Clients
	q.Began = time.Now()
	needsStore, err := FindLimits(q)
	if err != nil {
		return err
	}
	if needsStore && (q.Upload == nil || ReadUpload(q)) {
		Fill([]*Request{q})
		Take(q)
	}
	now := time.Now()
	finishInFull(now, s.Clock.Ahead(q.Decisions, now), q)
	if s.History != nil {
		record([]*Request{q}, now)
	}
	return nil
}

// FindLimits evaluates the policy for a request, and then finds the limits of the configuration that apply.
// The policy comes first, because a matcher can use the verdict. Between them, checkHiddenPost runs, and
// startFlight at the end. needsStore reports whether the store has to
// decide the request: the caller then calls ReadUpload if there is an Upload, and Fill. At the end, the
// caller always calls finishInFull or Finish. Callers set Input, Site and Began before FindLimits.
func FindLimits(q *Request) (needsStore bool, err error) {
	s := q.Site
	q.Limits = s.none
	q.Arrived = q.Began
	counts := s.all.EnforcesTokens
	if s.Policy != nil {
		evaluatePolicy(s, q)
		counts = counts || atomic.LoadInt32(&s.Policy.Rules.CountingTokens) != 0
	}
	exempt := len(s.Exempt) > 0 && isExempt(s, q.HTTP)
	if q.Outcome.Status != 0 || counts {
		if ends, err := checkHiddenPost(s, q, counts, exempt); ends {
			return false, err
		}
	}
	if !exempt {
		q.Limits = s.all
		if s.needsMatch {
			if err := match(s, q); err != nil || q.Outcome.Status != 0 {
				return false, err
			}
		}
	}
	special := q.HasVerdict && !q.Verdict.Simple || q.Limits.EnforcesTokens || q.Limits.HasHolds
	if special && !startFlight(q) ||
		len(q.Limits.Hits) == 0 && len(q.Verdict.Hits) == 0 && s.Hits == nil {
		return false, nil
	}
	if q.failure != nil {
		q.Arrived = time.Now() // after the policy failed, the limits have the whole timeout
	}
	return true, nil
}

// isExempt reports whether a request comes from one of Site.Exempt.
func isExempt(s *Site, r *http.Request) bool {
	address, assumed := s.Clients.Address(r)
	return !assumed && policy.ContainsAddress(s.Exempt, address)
}

// Fill sets the hits of requests and of their Calls: a hit for each of the limits of the configuration, then
// further hits on these limits if their keys have several values, then those of Site.Hits, then the hits of
// the policy. Before that, it reads short Uploads, and refuses requests for them, which then have no hits,
// and an Err of their Calls. If a panic ends Fill, the requests have no hits.
func Fill(requests []*Request) {
	readPrompts(requests)
	filled := make([][]ratelimit.Hit, len(requests))
	var counting, holding []int // the indexes of requests that chargeTokens and setHolds change
	for at, q := range requests {
		limits := q.Limits
		q.usesStore = q.Upload == nil || q.Outcome.Status == 0
		q.Err = nil
		hits := q.Hits[:0]
		q.Hits = hits
		q.Terms = q.Terms[:0]
		if !q.usesStore {
			continue
		}
		hits = append(hits, limits.Hits...)
		q.Terms = append(q.Terms, limits.Terms...)
		for i, z := range limits.Zones {
			if limits.Varies && z.cost != nil {
				hits[i].Cost = reading.CostOf(z.cost, &q.Input)
			}
			key := ""
			if z.Key.Frequent {
				key = reading.FrequentKey(z.Key, q.HTTP)
				if z.Key.Connection && key == policy.UnknownAddress {
					warnOfUnknown(q.Site)
				}
			}
			hits[i].Key = key
			if key == "" {
				hits = setZoneKeys(z, q, i, hits)
			}
		}
		if q.Site.Hits != nil {
			hits = append(hits, q.Site.Hits(q.HTTP)...)
			for len(q.Terms) < len(hits) {
				q.Terms = append(q.Terms, plainTerms)
			}
		}
		if q.HasVerdict {
			hits = append(hits, q.Verdict.Hits...)
			q.Terms = append(q.Terms, q.Verdict.Terms...)
		}
		filled[at] = hits
		if limits.Varies || q.HasVerdict && !q.Verdict.Simple {
			counting = append(counting, at)
		}
		if q.Flight != nil {
			holding = append(holding, at)
		}
	}
	if counting != nil {
		chargeTokens(requests, filled, counting)
	}
	if holding != nil {
		setHolds(requests, filled, holding)
	}
	for at, q := range requests {
		hits := filled[at]
		q.Hits = hits
		if c := q.Call; c != nil {
			c.Hits = append(c.Hits[:0], hits...)
			c.Decisions = c.Decisions[:0]
			c.Err = nil
			if !q.usesStore {
				c.Err = errRefused
			}
			c.HasIndependent = q.Limits.HasIndependent || q.HasVerdict && q.Verdict.HasIndependent
		}
	}
}

// errRefused is the error of the Call of a request that Fill refuses.
var errRefused = errors.New("refused without a decision")

// plainTerms are the terms of the hits of Site.Hits.
var plainTerms = &policy.Terms{Status: http.StatusTooManyRequests}

// background is the context of all decisions, instead of the request's context. The request's context ends
// when the client closes its connection, which would fail the whole batch and be logged as a failure of the
// database. The store bounds the wait, see health.Health.Patience.
var background = context.Background()

// Take gets decisions on the hits of a request from the store, and sets its Decisions or Err. If the policy
// took more than a tenth of the timeout, the store gets only the rest of Health.Patience.
func Take(q *Request) {
	q.Decisions = append(q.Decisions[:0], make([]ratelimit.Decision, len(q.Hits))...)
	if len(q.Hits) == 0 {
		return
	}
	s := q.Site
	ctx := background
	if q.HasVerdict && time.Since(q.Arrived) > s.Timeout/10 {
		within, cancel := health.WithDeadline(ctx, q.Arrived, s.Timeout)
		defer cancel()
		ctx = within
	}
	q.Err = s.Store.Take(ctx, s.Timeout, q.Hits, q.Decisions)
	if s.reopen != nil && errors.Is(q.Err, ratelimit.ErrClosed) {
		s.reopen(func(reopened *host.Databases) {
			q.Err = reopened.Limits.Store.Take(ctx, s.Timeout, q.Hits, q.Decisions)
		})
	}
}

// finishInFull ends requests that have Decisions, an Err, or nothing to decide. It sets their outcomes,
// counts them, prepares their settlements, and responds to requests with a Writer. The caller then records
// them. ahead is the result of Clock.Ahead at now. After a panic, finishInFull may be called again.
func finishInFull(now time.Time, ahead int64, all ...*Request) {
	var decided, settled, noted, written []*Request
	for _, q := range all {
		s := q.Site
		if s.Outage != nil && atomic.LoadInt32(&s.Outage.UnderWay) != 0 && q.Err == nil {
			s.Outage.Ended(s.Log, q.Decisions, now)
		}
		if q.usesStore && q.Err != nil {
			q.Decisions = make([]ratelimit.Decision, len(q.Hits))
			q.Outcome = TakeLocal(s, q, q.Err)
			q.Err = q.Outcome.Err
		} else if q.usesStore {
			decided = append(decided, q)
		}
	}
	SetOutcomes(decided...)
	for _, q := range all {
		if q.usesStore && (q.Outcome.Err != nil || q.failure != nil) {
			setUndecided(q)
		}
		passes := q.Outcome.Status == 0
		simple := !q.HasVerdict || q.Verdict.Simple
		if passes && len(q.Hits) > 0 && (q.Limits.Settles || !simple) && q.Settling == nil {
			settled = append(settled, q)
		}
		if !simple && q.Outcome.Err == nil {
			noted = append(noted, q)
		}
		if !passes {
			setForm(q)
		}
		if q.Writer != nil {
			written = append(written, q)
		}
	}
	newSettlings(settled)
	notify(noted)
	if ahead != 0 { // a settlement has the times of the database
		for _, q := range all {
			respond.ShiftResets(q.Decisions, ahead)
		}
	}
	Respond(written...)
	var counted []registry.Counted
	for _, q := range all {
		q.Finished = true
		if q.HasVerdict || len(q.Hits) > 0 {
			counted = append(counted, registry.Counted{Kind: q.Outcome.Kind, Passed: q.Outcome.Status == 0,
				Hits: q.Hits, Decisions: q.Decisions})
		}
	}
	registry.Count(all[0].Site.Node, counted...)
}

// setUndecided completes the outcome of a request on which the store or the policy has not decided.
func setUndecided(q *Request) {
	if q.Outcome.Err != nil {
		for q.Outcome.Hit < len(q.Hits) && q.Hits[q.Outcome.Hit].Independent {
			q.Outcome.Hit++
		}
		LogNoDecision(q)
	}
	if q.failure != nil && q.Outcome.Status == 0 {
		// The limits let the request pass, but the policy could not.
		o := NoDecision(q.Site.OnError, q.failure)
		q.Outcome.Kind = o.Kind
		q.Outcome.Reason = o.Reason
		q.Outcome.Err = o.Err
	}
}

// Respond sets the headers of the responses to decided requests. For a refusal it sets Status and Body.
func Respond(all ...*Request) {
	var headers []http.Header
	var outcomes []*respond.Outcome
	for _, q := range all {
		h := q.Writer.Header()
		if q.Site.Fields.X {
			headers = append(headers, h)
			outcomes = append(outcomes, &q.Outcome)
		}
		q.Body = ""
		passes := q.Outcome.Status == 0
		if !passes || q.Site.Fields.IETF {
			others := settings.Fields{IETF: q.Site.Fields.IETF}
			respond.SetFields(h, others, q.Site.Salt, &q.Outcome, q.Hits, q.Decisions)
		}
		if !passes {
			q.Status, q.Body = q.Outcome.SetContent(h)
		}
	}
	respond.SetXHeaders(headers, outcomes)
}

// Release prepares Requests for reuse and drops references to the memory of their requests. FindLimits needs
// what it leaves.
func Release(all ...*Request) {
	var verdicts []*policy.Verdict
	for _, q := range all {
		verdicts = append(verdicts, &q.Verdict)
		for i := range q.Hits {
			q.Hits[i] = ratelimit.Hit{}
		}
		if q.Call != nil {
			for i := range q.Call.Hits {
				q.Call.Hits[i] = ratelimit.Hit{}
			}
		}
		*q = Request{Call: q.Call, Verdict: q.Verdict, Hits: q.Hits[:0], Terms: q.Terms[:0],
			Decisions: q.Decisions[:0], matched: q.matched}
	}
	policy.Clear(verdicts...)
}
