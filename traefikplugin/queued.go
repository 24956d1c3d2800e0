package traefikplugin

import (
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
)

// requestQueue is a queue on a store, and the Requests that no request uses.
type requestQueue struct {
	queue *batch.Queue
	free  chan *serve.Request
	made  int32 // how many there are; atomic
}

// queues are those of a database, by the timeout of their requests. The process's mutex guards them.
type queues struct {
	byTimeout map[time.Duration]*requestQueue
}

// spare is how many Requests a queue has that no request uses, as long as it has fewer than maxPending. They are as many
// as may be taken between the moment when a request looks at them and that when it takes one.
const spare = 8

// maxPending is how many requests may wait for a decision at once. Further requests wait
// until another one is decided.
const maxPending = 2048

// queueOf returns a database's queue for requests with that timeout, or nil if its store decides at once, as a store in
// memory does. The caller holds the process's mutex.
func queueOf(p *process, d *host.Database, timeout time.Duration) *requestQueue {
	store := d.Postgres
	if store == nil {
		return nil
	}
	all := d.Keep(func() any { return &queues{map[time.Duration]*requestQueue{}} }).(*queues)
	q := all.byTimeout[timeout]
	if q == nil {
		q = &requestQueue{free: make(chan *serve.Request, maxPending)}
		q.queue = store.OpenQueue(timeout, fill, func(calls []*batch.Call) { deliver(p, d, calls) })
		all.byTimeout[timeout] = q
	}
	return q
}

// grow adds a Request, unless there are maxPending.
func grow(q *requestQueue) {
	if atomic.AddInt32(&q.made, 1) > maxPending {
		atomic.AddInt32(&q.made, -1)
		return
	}
	q.free <- newRequest()
}

// newRequest returns a Request for a queue. The queue's fill and deliver own it while its Call is in the queue.
func newRequest() *serve.Request {
	q := &serve.Request{Call: batch.NewCall()}
	q.Call.Owner = q
	return q
}

// fill sets the hits of the calls of a batch. A worker of the queue calls it before the batch
// is decided. It is what serve.Take does, in one loop for the interpreter: TestFrequentKeysAreAsAll compares the keys.
func fill(calls []*batch.Call) {
	for _, c := range calls {
		q := c.Owner.(*serve.Request)
		f := q.Limits
		c.Hits = append(c.Hits[:0], f.Hits...)
		c.Apart = f.Shadow
		for i, z := range f.Zones {
			key := ""
			switch { // the frequent keys are made here: with serve.SetKey a request has 500 allocations instead of 430
			case z.Source == fromRemoteIP:
				host, _, err := net.SplitHostPort(q.HTTP.RemoteAddr)
				if err != nil {
					host = q.HTTP.RemoteAddr
				}
				key = host
				if z.IPv4 < 32 || strings.IndexByte(host, ':') >= 0 { // see serve.MaybeAddress
					key = serve.Network(host, z.IPv4, z.IPv6)
				}
			case z.Source == fromText:
				key = z.Name
			case z.Source == fromHeader && len(q.HTTP.Header[z.Name]) == 1:
				key = q.HTTP.Header[z.Name][0]
				if z.IPv4 < 32 || strings.IndexByte(key, ':') >= 0 {
					key = serve.Network(key, z.IPv4, z.IPv6)
				}
			default:
				serve.SetKey(z, q, &c.Hits[i])
				key = c.Hits[i].Key
			}
			c.Hits[i].Key = key
			if key == "" {
				serve.WarnEmpty(q.Site, z)
			}
			if f.Varies {
				serve.SetCost(z, q, &c.Hits[i])
			}
		}
		if q.Asked {
			c.Hits = append(c.Hits, q.Verdict.Hits...)
			c.Apart = f.Shadow || len(c.Hits) > 0 && c.Hits[len(c.Hits)-1].Apart // those of the policy come last
		}
		if q.Flight != nil {
			q.Flight.Attach(c.Hits)
		}
	}
}

// deliver records decided requests, and sets their headers and the bodies of refusals. A worker of the
// queue calls it before ServeHTTP continues. Of requests with limits that are all simple, it does what serve.End and
// serve.Respond do, in one loop for the interpreter.
func deliver(p *process, d *host.Database, calls []*batch.Call) {
	requests := make([]*serve.Request, len(calls))
	responses := make([]respond.Response, len(calls))
	var recorded []*batch.Call
	n := 0
	if d.Outage.IsUnderWay() {
		for _, c := range calls {
			if c.Err == nil {
				d.Outage.Ended(p.host.Log, c.Decisions, time.Now())
			}
		}
	}
	ahead := d.Clock.Ahead(calls[0].Decisions, time.Now())
	for _, c := range calls {
		if c.Err != nil {
			continue
		}
		q := c.Owner.(*serve.Request)
		simple := q.Limits.Simple && (!q.Asked || q.Verdict.Simple)
		at := 0
		if simple {
			for i := range c.Decisions {
				if !c.Decisions[i].Allowed {
					at, _ = respond.Tightest(c.Hits, c.Decisions)
					break
				}
				if c.Decisions[i].Remaining < c.Decisions[at].Remaining {
					at = i
				}
			}
		}
		if !simple {
			serve.Delivered(q)
			serve.End(q.Site, q)
			serve.Respond(q.Site, q, q.Writer.Header())
			continue
		}
		requests[n] = q
		responses[n].Header = q.Writer.Header()
		responses[n].Decision = &c.Decisions[at]
		n++
		if q.Site.History != nil {
			q.Outcome = respond.Outcome{Hit: at, Decision: &c.Decisions[at]}
			recorded = append(recorded, c)
			continue
		}
		for i := range c.Hits {
			c.Hits[i].Key = "" // it may be a part of a long request, which must not be kept
			c.Hits[i].Subject = ""
		}
	}
	if recorded != nil {
		recordAll(p, recorded)
	}
	responses = responses[:n]
	respond.SetAllHeaders(responses, ahead)
	requests = requests[:n]
	for i := range responses {
		q := requests[i]
		q.Writer = nil
		q.HTTP = nil
		q.Body = responses[i].Body
		q.Admitted = q.Body == ""
		d.Report.Count(q.Admitted, q.Call.Hits, q.Call.Decisions)
		if !q.Admitted {
			q.Outcome.Status = http.StatusTooManyRequests
		}
	}
}

// release makes a Request ready for another request. Each key may be a part of a long request, and there are maxPending
// places.
func release(q *serve.Request) {
	q.Release()
	hits := q.Call.Hits[:cap(q.Call.Hits)] // a panic may have left some behind the last one
	for i := range hits {
		hits[i].Key = ""
		hits[i].Subject = ""
		hits[i].Slot = nil
	}
}
