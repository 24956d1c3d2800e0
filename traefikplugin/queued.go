package traefikplugin

import (
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// pendingRequest is a request that waits for its decision. It is used for one request after
// another. ServeHTTP owns it, except while its call is in the queue. During that time the
// queue's fill and deliver own it.
type pendingRequest struct {
	call *batch.Call // its Owner is the pendingRequest
	hits *hitTemplate
	w    http.ResponseWriter
	r    *http.Request

	// Set by deliver. If deliver sets neither of the first two, there is no decision.
	admitted bool
	body     string // of a refusal
	status   int    // of a refusal

	flight *edge.Flight // nil if the request holds nothing and does not wait

	// Set if the policy has been asked about the request.
	asked    bool
	facts    policy.Facts
	verdict  policy.Verdict
	began    time.Time      // when the policy was asked, unless it knew all about the request and there is no history
	settling *edge.Settling // what is to be settled after the response; nil is nothing
	judged   edge.Outcome   // by deliver, if not all limits are simple, or with a history
}

func newPendingRequest() *pendingRequest {
	p := &pendingRequest{call: batch.NewCall()}
	p.call.Owner = p
	return p
}

// hitTemplate is what a middleware charges to each request: the hits, and templates for the
// keys and costs, which differ between requests.
type hitTemplate struct {
	addresses *addresses

	// One element for each zone.
	hits    []ratelimit.Hit // without the key
	keys    []template
	first   [][]alternative // nil, unless the key has alternatives: then keys has a piece of fromAlternatives
	ipv4s   []int           // how many bits of an address in keys count
	ipv6s   []int
	costs   []template         // nil if the cost is fixed
	least   []int64            // the least that costs give
	bans    []*policy.BanAfter // nil if refusals lead to none
	settles []*policy.Settle   // nil if the cost is what was charged
	waits   []*edge.Wait       // nil if refused requests do not wait

	byValue []map[string]*ratelimit.Limit // by the text of by; nil if there is one limit for all requests
	by      []template

	varies  bool // one of costs or of byValue is not nil
	shadow  bool // one of hits is Apart
	settled bool // one of settles is not nil
	flies   bool // one of hits is on a limit InFlight, or one of waits is not nil
	waiting bool // one of waits is not nil
	judged  bool // deliver must judge each request: shadow or settled is set, or fields are not x alone
	fields  edge.Fields

	// Set before the first request.
	warnings *emptyKeys
	recorder *recorder // nil without a history
	store    ratelimit.Store
	logger   *logger
}

func newHitTemplate(zones []*zone, a *addresses, fields edge.Fields) *hitTemplate {
	t := &hitTemplate{addresses: a, fields: fields, judged: fields.IETF}
	for _, z := range zones {
		if z.mode == policy.Off {
			continue
		}
		if a.plain {
			z.key.useRemoteIP()
			z.costText.useRemoteIP()
			for i := range z.alternatives {
				z.alternatives[i].text.useRemoteIP()
			}
		}
		key := z.key
		if z.alternatives != nil {
			key = keyOfAlternatives
		}
		t.first = append(t.first, z.alternatives)
		t.hits = append(t.hits, ratelimit.Hit{Limit: z.limit, Cost: z.cost, Secret: z.secret, Apart: z.mode == policy.Shadow})
		t.shadow = t.shadow || z.mode == policy.Shadow
		t.keys = append(t.keys, key)
		t.ipv4s = append(t.ipv4s, z.ipv4)
		t.ipv6s = append(t.ipv6s, z.ipv6)
		t.costs = append(t.costs, z.costText)
		t.least = append(t.least, z.minCost)
		t.bans = append(t.bans, z.ban)
		t.settles = append(t.settles, z.settle)
		t.settled = t.settled || z.settle != nil
		t.waits = append(t.waits, z.wait)
		t.waiting = t.waiting || z.wait != nil
		t.byValue = append(t.byValue, z.byValue)
		t.by = append(t.by, z.by)
		t.varies = t.varies || z.costText != nil || z.byValue != nil
	}
	t.judged = t.judged || t.shadow || t.settled
	t.flies = t.waiting || edge.HasSlots(t.hits)
	return t
}

// requestQueue is a queue on a store, and the pending requests that no request uses.
type requestQueue struct {
	queue *batch.Queue
	free  chan *pendingRequest
}

// maxPending is how many requests may wait for a decision at once. Further requests wait
// until another one is decided.
const maxPending = 2048

// newRequestQueue returns a queue for requests with that timeout. It returns nil if the store
// decides at once, as a store in memory does.
func newRequestQueue(store ratelimit.Store, timeout time.Duration) *requestQueue {
	queue := batch.OpenQueue(store, timeout, fill, deliver)
	if queue == nil {
		return nil
	}
	q := &requestQueue{queue: queue, free: make(chan *pendingRequest, maxPending)}
	for i := 0; i < maxPending; i++ {
		q.free <- newPendingRequest()
	}
	return q
}

// fill sets the hits of the calls of a batch. A worker of the queue calls it before the batch
// is decided.
func fill(calls []*batch.Call) {
	for _, c := range calls {
		p := c.Owner.(*pendingRequest)
		f := p.hits
		p.status = http.StatusTooManyRequests
		c.Hits = append(c.Hits[:0], f.hits...)
		c.Apart = f.shadow
		for i := range f.hits {
			t := f.keys[i]
			from := fromSeveral
			if len(t) == 1 {
				from = t[0].from
			}
			key := ""
			switch { // the frequent keys are made here: with expand a request has 500 allocations instead of 430
			case from == fromRemoteIP:
				host, _, err := net.SplitHostPort(p.r.RemoteAddr)
				if err != nil {
					host = p.r.RemoteAddr
				}
				key = host
				if f.ipv4s[i] < 32 || strings.IndexByte(host, ':') >= 0 { // see edge.MaybeAddress
					key = edge.Network(host, f.ipv4s[i], f.ipv6s[i])
				}
			case from == fromText:
				key = t[0].text
			case from == fromHeader && len(p.r.Header[t[0].text]) == 1:
				key = p.r.Header[t[0].text][0]
				if f.ipv4s[i] < 32 || strings.IndexByte(key, ':') >= 0 {
					key = edge.Network(key, f.ipv4s[i], f.ipv6s[i])
				}
			case from == fromAlternatives:
				chooseKey(f, i, p.r, &c.Hits[i])
				key = c.Hits[i].Key
			default:
				key = expand(t, p.r, f.addresses, f.ipv4s[i], f.ipv6s[i])
			}
			c.Hits[i].Key = key
			if key == "" {
				f.warnings.warn(c.Hits[i].Limit.Prefix)
			}
		}
		if f.varies {
			fillVarying(f, p.r, c.Hits)
		}
		if p.asked {
			c.Hits = append(c.Hits, p.verdict.Hits...)
			c.Apart = f.shadow || len(c.Hits) > 0 && c.Hits[len(c.Hits)-1].Apart // those of the policy come last
		}
		if p.flight != nil {
			p.flight.Attach(c.Hits, f.waits)
		}
	}
}

// fillVarying sets the limits and the costs that depend on the request.
func fillVarying(f *hitTemplate, r *http.Request, hits []ratelimit.Hit) {
	for i := range f.costs {
		if f.byValue[i] != nil {
			if limit := f.byValue[i][textOf(f.by[i], r, f.addresses)]; limit != nil {
				hits[i].Limit = limit
			}
		}
		if f.costs[i] != nil {
			edge.SetCost(&hits[i], expand(f.costs[i], r, f.addresses, 32, 128), f.least[i])
		}
	}
}

// deliver sets the headers of decided requests, and the bodies of refusals. A worker of the
// queue calls it before ServeHTTP continues.
func deliver(calls []*batch.Call) {
	requests := make([]*pendingRequest, len(calls))
	responses := make([]edge.Response, len(calls))
	var recorded []*batch.Call
	n := 0
	for _, c := range calls {
		if c.Err != nil {
			continue
		}
		p := c.Owner.(*pendingRequest)
		if p.hits.judged || p.asked && !p.verdict.Simple {
			if deliverJudged(p, c) {
				continue
			}
			requests[n] = p
			responses[n].Header = p.w.Header()
			responses[n].Decision = p.judged.Decision
			n++
			continue
		}
		at := 0
		problem := false
		for i := range c.Decisions {
			if !c.Decisions[i].Allowed {
				at = edge.Tightest(c.Decisions)
				problem = len(p.r.Header["Accept"]) != 0 && edge.PrefersProblem(p.r.Header)
				break
			}
			if c.Decisions[i].Remaining < c.Decisions[at].Remaining {
				at = i
			}
		}
		if problem && deliverJudged(p, c) {
			continue
		}
		requests[n] = p
		responses[n].Header = p.w.Header()
		responses[n].Decision = &c.Decisions[at]
		n++
		if p.hits.recorder != nil {
			p.judged = edge.Outcome{Hit: at, Decision: &c.Decisions[at]}
			recorded = append(recorded, c)
			continue
		}
		for i := range c.Hits {
			c.Hits[i].Key = "" // it may be a part of a long request, which must not be kept
			c.Hits[i].Subject = ""
		}
	}
	if recorded != nil {
		recordAll(recorded)
	}
	responses = responses[:n]
	edge.SetAllHeaders(responses)
	for i := range responses {
		p := requests[i]
		p.w = nil
		p.r = nil
		p.body = responses[i].Body
		p.admitted = p.body == ""
	}
}

// forget forgets a request that deliver has not admitted. Each key may be a part of a long
// request, and there are maxPending places.
func forget(p *pendingRequest) {
	p.w = nil
	p.r = nil
	hits := p.call.Hits[:cap(p.call.Hits)] // a panic may have left some behind the last one
	for i := range hits {
		hits[i].Key = ""
		hits[i].Subject = ""
		hits[i].Slot = nil
	}
}
