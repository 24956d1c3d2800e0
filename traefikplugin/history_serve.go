package traefikplugin

import (
	"net/http"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
)

// recordAll records requests that the queue has decided, and forgets the keys of their hits. All
// their limits are simple, and Outcome has the decision alone. What history.AddCounted can add needs few facts, and
// is added together.
func recordAll(p *process, calls []*batch.Call) {
	now := time.Now()
	p.watch(calls[0].Owner.(*serve.Request).HTTP)
	records := make([]history.Record, len(calls))
	counted := make([]*batch.Call, 0, len(calls)) // the calls of records
	var writer *history.Writer                    // of counted
	for _, c := range calls {
		q := c.Owner.(*serve.Request)
		site := q.Site
		d := q.Outcome.Decision
		h := &c.Hits[q.Outcome.Hit]
		if q.Limits.Audit.Level >= settings.AuditSample || !d.Allowed && (q.Asked || h.Secret) || q.Asked && len(q.Verdict.Would) > 0 {
			recordOne(c)
			continue
		}
		if site.History != writer {
			addCounted(writer, records, counted)
			counted = counted[:0]
			writer = site.History
		}
		r := &records[len(counted)]
		counted = append(counted, c)
		r.Time = now
		r.Prefix = h.Limit.Prefix
		r.Cost = h.Cost
		r.Quota = d.Limit
		r.Source = d.Source
		r.Audit = q.Limits.Audit
		r.Outcome = history.Allowed
		if h.Peek {
			r.Cost = 0
		}
		if !d.Allowed {
			r.Outcome = history.Limited
			r.Status = http.StatusTooManyRequests
			r.Key = h.Key
		}
		if q.Asked {
			r.Duration = now.Sub(q.Began)
			r.Endpoint = q.Facts.Route
			if r.Endpoint == "" {
				r.Endpoint = q.Verdict.Endpoint
			}
			r.User = q.Verdict.User
			r.KeyID = q.Verdict.KeyID
		} else {
			r.Duration = now.Sub(c.Arrived)
		}
		if r.Endpoint == "" {
			r.Endpoint = q.Limits.Endpoint
		}
		r.Hits = c.Hits
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
	q := c.Owner.(*serve.Request)
	serve.Delivered(q)
	serve.Record(q.Site, q)
}
