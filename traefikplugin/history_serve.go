package traefikplugin

import (
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/history"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/policy"
)

// record records a request of a middleware with a history. The caller owns the request.
func record(p *pendingRequest, o *edge.Outcome, hits []ratelimit.Hit, decisions []ratelimit.Decision) {
	f := p.hits.recorder
	now := time.Now()
	r := &history.Record{Time: now, Duration: now.Sub(p.began), Method: p.r.Method, Audit: f.audit}
	var said *policy.Outcome
	if p.asked {
		said = &p.outcome
		r.Address = p.facts.Address
		r.Host = p.facts.Host
		r.Path = p.facts.Path
		r.Route = p.facts.Route
	} else {
		r.Address = addressOf(f.addresses, p.r)
		r.Host = policy.NormalHost(p.r.Host)
	}
	if r.Path == "" { // also if it is ambiguous
		r.Path = edge.Path(p.r.URL.EscapedPath())
	}
	if f.hidesHost {
		r.Host = ""
	}
	if f.hidesPath {
		r.Path = ""
	}
	edge.SetRecord(r, o, hits, decisions, said)
	edge.AddRecord(f.writer, r, o, hits, decisions, said)
}

// recordDecided records a request that the queue has decided.
func recordDecided(p *pendingRequest, c *batch.Call) {
	p.judged = edge.OutcomeOf(c.Decisions)
	record(p, &p.judged, c.Hits, c.Decisions)
}

// recordByPolicy records a request that is answered, or passes, without a decision on a limit. It
// does nothing without a history.
func recordByPolicy(p *pendingRequest, o edge.Outcome) {
	if p.hits.recorder != nil {
		record(p, &o, nil, nil)
	}
}

// recordAlone records a request that no batch has decided. It does nothing without a history.
// failure is why the policy could not decide the request, or nil: what it would have said of a
// request that passes is unknown.
func recordAlone(p *pendingRequest, o edge.Outcome, failure error) {
	if p.hits.recorder == nil {
		return
	}
	if failure != nil && o.Status == 0 {
		o.Err = failure
	}
	if o.Err != nil && failure == nil {
		fill([]*batch.Call{p.call}) // its hits may be those of an earlier request
	}
	record(p, &o, p.call.Hits, p.call.Decisions)
}
