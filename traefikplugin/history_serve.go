package traefikplugin

import (
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// recordAll records requests that the queue has decided, and forgets the keys of their hits. All
// their limits are simple, and judged has no status yet. It does what record does, in one loop: with record
// for each request, a request takes 1.5 times the processor time or more, and 960 allocations instead of 520
// (benchmark Interpreted/Postgres,_headers_both,_audit_denied in integration, in turns).
func recordAll(calls []*batch.Call) {
	now := time.Now()
	r := &history.Record{Time: now}
	if first := calls[0].Owner.(*pendingRequest); atomic.LoadInt32(&first.hits.recorder.registry.watched) == 0 {
		first.hits.recorder.registry.flushAtShutdown(first.r)
	}
	for _, c := range calls {
		p := c.Owner.(*pendingRequest)
		f := p.hits.recorder
		o := &p.judged
		if o.Decision.Allowed && f.counts && (!p.asked || len(p.verdict.Would) == 0) {
			h := &c.Hits[o.Hit]
			r.Prefix = h.Limit.Prefix
			r.Cost = h.Cost
			if h.Peek {
				r.Cost = 0
			}
			if p.asked {
				r.Duration = now.Sub(p.began)
				r.Host = p.facts.Host
				r.Route = p.facts.Route
				r.User = p.verdict.User
				r.KeyID = p.verdict.KeyID
				if first := len(c.Hits) - len(p.verdict.Marks); o.Hit >= first {
					r.Prefix = r.Prefix[:len(edge.RulePrefix)+len(p.verdict.Marks[o.Hit-first].Counter)] // rule/COUNTER/LIMIT
				}
			} else {
				r.Duration = now.Sub(c.Arrived)
				r.Host = p.r.Host
				r.Route = ""
				r.User = ""
				r.KeyID = 0
				if strings.Trim(r.Host, plainHost) != "" || strings.HasSuffix(r.Host, ".") {
					r.Host = policy.NormalHost(r.Host)
				}
			}
			if f.hidesHost {
				r.Host = ""
			} else if strings.IndexByte(r.Host, '_') >= 0 {
				r.Host = policy.HideKeys(r.Host, "")
			}
			history.Add(f.writer, r)
		} else {
			if !o.Decision.Allowed {
				o.Status = http.StatusTooManyRequests
			}
			record(p, o, c.Hits, c.Decisions)
		}
		for i := range c.Hits {
			c.Hits[i].Key = ""
		}
	}
}

// record records a request of a middleware with a history. The caller owns the request.
func record(p *pendingRequest, o *edge.Outcome, hits []ratelimit.Hit, decisions []ratelimit.Decision) {
	f := p.hits.recorder
	if atomic.LoadInt32(&f.registry.watched) == 0 {
		f.registry.flushAtShutdown(p.r)
	}
	r := &history.Record{Time: time.Now(), Method: p.r.Method, Audit: f.audit}
	var said *policy.Verdict
	key := ""
	if p.asked {
		said = &p.verdict
		key, _ = senderOf(f.policy, p.r)
		r.Duration = r.Time.Sub(p.began)
		r.Address = p.facts.Address
		r.Host = p.facts.Host
		r.Path = p.facts.Path
		r.Route = p.facts.Route
	} else {
		r.Duration = r.Time.Sub(p.call.Arrived)
		r.Address = addressOf(f.addresses, p.r)
		r.Host = p.r.Host
		if strings.Trim(r.Host, plainHost) != "" || strings.HasSuffix(r.Host, ".") {
			r.Host = policy.NormalHost(r.Host)
		}
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
	edge.HideKeys(r, o, said, key)
	edge.SetRecord(r, o, hits, decisions, said)
	history.Add(f.writer, r)
	if said != nil && (!said.Simple || len(said.Would) > 0) {
		edge.AddShadows(f.writer, r, o, hits, decisions, said)
	}
}
