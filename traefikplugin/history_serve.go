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
// their limits are simple, and judged has no status yet. What history.AddCounted can add needs few facts, and
// is added together.
func recordAll(calls []*batch.Call) {
	now := time.Now()
	if first := calls[0].Owner.(*pendingRequest); atomic.LoadInt32(&first.hits.recorder.registry.watched) == 0 {
		first.hits.recorder.registry.flushAtShutdown(first.r)
	}
	records := make([]history.Record, len(calls))
	counted := make([]*batch.Call, 0, len(calls)) // the calls of records
	var writer *history.Writer                    // of counted
	watched := false                              // writer is
	for _, c := range calls {
		p := c.Owner.(*pendingRequest)
		f := p.hits.recorder
		d := p.judged.Decision
		h := &c.Hits[p.judged.Hit]
		if !f.counts || !d.Allowed && (p.asked || h.Secret) || p.asked && len(p.verdict.Would) > 0 {
			recordOne(c)
			continue
		}
		if f.writer != writer {
			addCounted(writer, records, counted)
			counted = counted[:0]
			writer = f.writer
			watched = history.IsWatched(writer)
		}
		r := &records[len(counted)]
		counted = append(counted, c)
		r.Time = now
		r.Prefix = h.Limit.Prefix
		r.Cost = h.Cost
		r.Quota = d.Limit
		r.Source = d.Source
		r.Audit = f.audit
		r.Outcome = history.Allowed
		if h.Peek {
			r.Cost = 0
		}
		if !d.Allowed {
			r.Outcome = history.Limited
			r.Status = http.StatusTooManyRequests
			r.Key = h.Key
		}
		if d.Shared {
			r.Key = edge.OtherKey
		}
		if watched {
			if r.Key != edge.OtherKey {
				r.Key = h.StoredKey()
			}
			r.Address = p.facts.Address
			if !p.asked {
				r.Address = addressOf(f.addresses, p.r)
			}
		}
		if p.asked {
			r.Duration = now.Sub(p.began)
			r.Host = p.facts.Host
			r.Route = p.facts.Route
			r.User = p.verdict.User
			r.KeyID = p.verdict.KeyID
			if first := len(c.Hits) - len(p.verdict.Marks); p.judged.Hit >= first {
				r.Prefix = r.Prefix[:len(edge.RulePrefix)+len(p.verdict.Marks[p.judged.Hit-first].Counter)] // rule/COUNTER/LIMIT
			}
		} else {
			r.Duration = now.Sub(c.Arrived)
			r.Host = p.r.Host
			if strings.Trim(r.Host, plainHost) != "" || strings.HasSuffix(r.Host, ".") {
				r.Host = policy.NormalHost(r.Host)
			}
		}
		if f.hidesHost {
			r.Host = ""
		} else if strings.IndexByte(r.Host, '_') >= 0 {
			r.Host = policy.HideKeys(r.Host, "")
		}
	}
	addCounted(writer, records, counted)
	for _, c := range calls {
		for i := range c.Hits {
			c.Hits[i].Key = ""
			c.Hits[i].Subject = ""
		}
	}
}

// addCounted adds the records of calls, and records one by one those that cannot be added together.
func addCounted(w *history.Writer, records []history.Record, calls []*batch.Call) {
	if len(calls) == 0 {
		return
	}
	for _, i := range history.AddCounted(w, records[:len(calls)]) {
		recordOne(calls[i])
	}
	for i := range calls {
		records[i] = history.Record{}
	}
}

func recordOne(c *batch.Call) {
	p := c.Owner.(*pendingRequest)
	if !p.judged.Decision.Allowed {
		p.judged.Status = http.StatusTooManyRequests
	}
	record(p, &p.judged, c.Hits, c.Decisions)
}

// record records a request of a middleware with a history. The caller owns the request.
func record(p *pendingRequest, o *edge.Outcome, hits []ratelimit.Hit, decisions []ratelimit.Decision) {
	f := p.hits.recorder
	if atomic.LoadInt32(&f.registry.watched) == 0 {
		f.registry.flushAtShutdown(p.r)
	}
	r := &history.Record{Time: time.Now(), Method: p.r.Method, Audit: f.audit, Watched: history.IsWatched(f.writer)}
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
	if said == nil && p.hits.shadow {
		p.verdict.Reset() // it may be that of an earlier request
		said = &p.verdict
	}
	if said != nil && (p.hits.shadow || !said.Simple || len(said.Would) > 0) {
		edge.AddShadows(f.writer, r, o, hits, decisions, said)
	}
}
