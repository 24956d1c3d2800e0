package traefikplugin

import (
	"net"
	"net/http"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// exchange is a request on its way through the plugin.
//
// To the interpreter, a call of a function costs some 0.4 µs, that of a method 1.6,
// and each variable and intermediate value of a function adds 0.07 to every call
// of it; a step within one function costs 0.03. So what has to be done for each
// request is done for all that wait for the same batch, in fill and deliver.
//
// No type here may come back to itself by way of its fields, other than through
// an interface: Yaegi then takes one type for two.
type exchange struct {
	call     *ratelimit.Call
	form     *form
	w        http.ResponseWriter
	r        *http.Request
	admitted bool   // and its headers are written
	body     string // if it is refused, and its headers are written
}

// entering is the middleware on a store that has an entrance.
type entering struct {
	idle  chan *exchange
	queue *ratelimit.Queue
	form  *form
	next  http.Handler
	h     *handler
}

// ServeHTTP runs for every request, so it is written for few operations.
func (e *entering) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := <-e.idle
	x.form = e.form
	x.w = w
	x.r = r
	ratelimit.Enter(e.queue, x.call)
	if !x.admitted {
		enterOtherwise(e, x, w, r)
		return
	}
	e.idle <- x
	e.next.ServeHTTP(w, r)
}

// enterOtherwise is what becomes of a request that is not admitted.
func enterOtherwise(e *entering, x *exchange, w http.ResponseWriter, r *http.Request) {
	if body := x.body; body != "" {
		e.idle <- x
		w.WriteHeader(http.StatusTooManyRequests)
		// The client may be gone; there is nobody to tell.
		_, _ = w.Write([]byte(body))
		return
	}
	ok := undecided(e.h, x, w)
	x.w = nil
	x.r = nil
	e.idle <- x
	if ok {
		e.next.ServeHTTP(w, r)
	}
}

// form is what all requests to a middleware ask for, with the blanks that each
// request fills in.
type form struct {
	addresses *addresses

	// By rule: the hit without its key, and the key and cost to be filled in.
	hits   []ratelimit.Hit
	keys   []template
	costs  []template // nil where the cost is fixed
	costly bool       // a cost has to be filled in
}

func newForm(rules []*rule, a *addresses) *form {
	f := &form{addresses: a}
	for _, rule := range rules {
		if a.plain {
			rule.key.directly()
			rule.costText.directly()
		}
		f.hits = append(f.hits, ratelimit.Hit{Limit: rule.limit, Cost: rule.cost, Secret: rule.secret})
		f.keys = append(f.keys, rule.key)
		f.costs = append(f.costs, rule.costText)
		f.costly = f.costly || rule.costText != nil
	}
	return f
}

func newExchange() *exchange {
	x := &exchange{call: ratelimit.NewCall()}
	x.call.Owner = x
	return x
}

// entrance is where requests enter a store.
type entrance struct {
	queue *ratelimit.Queue
	idle  chan *exchange // free for the next request
}

// atOnce is how many requests may wait for a decision at once; who comes then
// waits for another to be decided.
const atOnce = 2048

func newEntrance(store *ratelimit.Postgres, timeout time.Duration) *entrance {
	e := &entrance{queue: store.NewQueue(timeout, fill, deliver), idle: make(chan *exchange, atOnce)}
	for i := 0; i < atOnce; i++ {
		e.idle <- newExchange()
	}
	return e
}

// fill puts in what requests ask for.
func fill(calls []*ratelimit.Call) {
	for _, c := range calls {
		x := c.Owner.(*exchange)
		f := x.form
		x.admitted = false
		x.body = ""
		c.Hits = append(c.Hits[:0], f.hits...)
		for i := range c.Hits {
			t := f.keys[i]
			from := fromSeveral
			if len(t) == 1 {
				from = t[0].from
			}
			key := ""
			switch { // the frequent keys in plain sight
			case from == fromRemoteIP:
				host, _, err := net.SplitHostPort(x.r.RemoteAddr)
				if err != nil {
					host = x.r.RemoteAddr
				}
				key = host
			case from == fromText:
				key = t[0].text
			case from == fromHeader && len(x.r.Header[t[0].text]) == 1:
				key = x.r.Header[t[0].text][0]
			default:
				key = expand(t, x.r, f.addresses)
			}
			c.Hits[i].Key = key
		}
		if f.costly {
			fillCosts(f, x.r, c.Hits)
		}
	}
}

// fillCosts puts in the costs that requests give.
func fillCosts(f *form, r *http.Request, hits []ratelimit.Hit) {
	for i := range hits {
		if f.costs[i] != nil {
			edge.SetCost(&hits[i], expand(f.costs[i], r, f.addresses))
		}
	}
}

// deliver writes the headers of requests, and has the bodies of refusals ready.
func deliver(calls []*ratelimit.Call) {
	exchanges := make([]*exchange, len(calls))
	replies := make([]edge.Reply, len(calls))
	n := 0
	for _, c := range calls {
		if c.Err != nil {
			continue
		}
		at := 0
		for i := range c.Decisions {
			if !c.Decisions[i].Allowed {
				at = edge.Tightest(c.Decisions)
				break
			}
			if c.Decisions[i].Remaining < c.Decisions[at].Remaining {
				at = i
			}
		}
		x := c.Owner.(*exchange)
		exchanges[n] = x
		replies[n].Header = x.w.Header()
		replies[n].Decision = &c.Decisions[at]
		n++
		for i := range c.Hits {
			c.Hits[i].Key = "" // it may be a part of a long request
		}
	}
	replies = replies[:n]
	edge.SetAllHeaders(replies)
	for i := range replies {
		x := exchanges[i]
		x.w = nil
		x.r = nil
		x.body = replies[i].Body
		x.admitted = x.body == ""
	}
}
