package serve

import (
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/outcome"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/internal/store/registry"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// FillCalls calls Fill for the requests that own the calls of a queue.
func FillCalls(calls []*batch.Call) {
	requests := make([]*Request, len(calls))
	for i, c := range calls {
		requests[i] = c.Owner.(*Request)
	}
	Fill(requests)
}

// FinishCalls passes the decisions of a queue's calls to the requests that own them, and calls Finish. It
// skips calls that a closed store refused, for which Take runs next.
func FinishCalls(calls []*batch.Call) {
	finished := make([]*Request, 0, len(calls))
	for _, c := range calls {
		q := c.Owner.(*Request)
		q.Decisions = c.Decisions
		if c.Err != nil {
			if errors.Is(c.Err, ratelimit.ErrClosed) {
				continue
			}
			q.Decisions = nil // Clock.Ahead must not read the decisions of an earlier request
		}
		q.Err = c.Err
		finished = append(finished, q)
	}
	Finish(finished)
}

// Finish ends requests on one database as finishInFull does. It handles the frequent requests of Traefik in
// one loop, because a call is slow in the interpreter.
func Finish(requests []*Request) {
	if len(requests) == 0 {
		return
	}
	var recorded, answered, others []*Request
	var responses []respond.Response
	now := time.Now()
	first := requests[0].Site // all sites share its database
	ahead := first.Clock.Ahead(requests[0].Decisions, now)
	outage := first.Outage != nil && atomic.LoadInt32(&first.Outage.UnderWay) != 0
	for _, q := range requests {
		s := q.Site
		if q.Finished {
			continue // after a panic, a queue finishes all calls again
		}
		if s.History != nil {
			recorded = append(recorded, q)
		}
		if !q.usesStore || q.Err != nil || q.Writer == nil || !q.Limits.Simple ||
			q.HasVerdict && !q.Verdict.Simple || len(q.Hits) == 0 || q.failure != nil {
			others = append(others, q)
			continue
		}
		if outage {
			s.Outage.Ended(s.Log, q.Decisions, now)
		}
		at := 0
		status := 0
		kind := outcome.Admitted
		for i := range q.Decisions {
			if !q.Decisions[i].Allowed {
				at = respond.Tightest(q.Hits, q.Decisions, nil)
				status = http.StatusTooManyRequests
				kind = outcome.Limited
				break
			}
			if q.Decisions[i].Remaining < q.Decisions[at].Remaining {
				at = i
			}
		}
		if status != 0 && (hasObject(q) || rpcOf(q) != "") {
			others = append(others, q)
			continue
		}
		d := &q.Decisions[at]
		answered = append(answered, q)
		responses = append(responses, respond.Response{Header: q.Writer.Header(), Decision: d, Body: ""})
		if s.History != nil {
			q.Outcome = respond.Outcome{Hit: at, Decision: d}
		}
		q.Outcome.Status = status
		q.Outcome.Kind = kind
	}
	if others != nil {
		finishInFull(now, ahead, others...)
	}
	if recorded != nil {
		record(recorded, now)
	}
	if ahead != 0 { // after all that can panic, since a second call would shift the times again
		for _, q := range answered {
			respond.ShiftResets(q.Decisions, ahead)
		}
	}
	respond.SetResponses(responses)
	setFinished(first.Node, answered, responses)
}

// setFinished ends requests that Finish has taken together, with the responses in the same order.
func setFinished(node *registry.Node, answered []*Request, responses []respond.Response) {
	counted := make([]registry.Counted, len(answered))
	var released []*Request
	for i, q := range answered {
		q.Body = responses[i].Body
		q.Status = q.Outcome.Status
		q.Finished = true
		passes := q.Status == 0
		counted[i] = registry.Counted{Kind: q.Outcome.Kind, Passed: passes, Hits: q.Hits,
			Decisions: q.Decisions}
		if passes && !(q.HasVerdict && q.Site.Forwards) {
			released = append(released, q)
		}
	}
	registry.Count(node, counted...)
	Release(released...)
	for _, q := range released {
		q.Finished = true
		q.Released = true
	}
}
