package caddymodule

import (
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Zone is one of several limits on a request. A request passes if all limits
// that match it have room, and is charged to all of them or to none.
type Zone struct {
	// Which requests the limit is for, as in a route: those that one of the
	// matcher sets matches. Default: all.
	MatcherSetsRaw caddyhttp.RawMatcherSets `json:"match,omitempty" caddy:"namespace=http.matchers"`

	LimitSettings
}

// name returns the name of the zone in errors. i is the index in Handler.Zones.
func (z *Zone) name(i int) string {
	if z.Prefix == "" {
		return "zone " + strconv.Itoa(i+1)
	}
	return "zone " + strconv.Quote(z.Prefix)
}

// zoneError is an error about a zone.
type zoneError struct {
	at   int // its index in Handler.Zones
	name string
	err  error
}

func (e *zoneError) Error() string { return e.name + ": " + e.err.Error() }

func (e *zoneError) Unwrap() error { return e.err }

// zone is a limit of a configuration that was compiled.
type zone struct {
	limit    *ratelimit.Limit
	matchers caddyhttp.MatcherSets
	key      key
	cost     int64 // 0 if costText gives it
	costText template
	minCost  int64            // the least that costText gives
	ban      *policy.BanAfter // nil if refusals lead to none
	audit    history.Audit
	mode     policy.Mode
	wait     *edge.Wait                  // nil if refused requests do not wait
	byValue  map[string]*ratelimit.Limit // by the text of by; nil if there is one limit for all requests
	by       template
	counters counters
	empty    atomic.Bool // the log has a warning that the key was empty
}

// row is for edge.CheckRows.
func (z *zone) row() edge.LimitRows {
	return edge.LimitRows{Limit: z.limit, Fixed: z.key.fixed, Key: z.key.text}
}

// hit is what a request is charged in the zone.
func (z *zone) hit(r *http.Request, repl *caddy.Replacer) ratelimit.Hit {
	hit := ratelimit.Hit{Limit: z.limit, Cost: z.cost, Secret: z.key.secret, Apart: z.mode == policy.Shadow}
	if z.key.alternatives == nil {
		hit.Key = z.key.of(r, repl)
	} else {
		hit.Key, hit.Secret = z.key.choose(r, repl)
	}
	if z.byValue != nil {
		if limit := z.byValue[z.by.of(repl)]; limit != nil {
			hit.Limit = limit
		}
	}
	if hit.Cost == 0 {
		edge.SetCost(&hit, z.costText.of(repl), z.minCost)
	}
	return hit
}

// requestHits are the hits of a request, their zones, and their decisions. The last hits are
// those of the policy.
type requestHits struct {
	zones     []*zone
	hits      []ratelimit.Hit
	decisions []ratelimit.Decision
	waits     []*edge.Wait // of zones; none if no zone has one
	flight    *edge.Flight // nil if the request holds nothing and does not wait

	facts  policy.Facts
	policy policy.Verdict
	record history.Record // empty except while it is added to the history
}

// freeRequestHits holds memory for the next requests, to save allocations.
var freeRequestHits = sync.Pool{New: func() any { return new(requestHits) }}

// release makes the memory free for another request, without the keys: a key may be a part
// of a long request.
func (h *requestHits) release() {
	clear(h.zones)
	clear(h.hits)
	h.facts = policy.Facts{}
	h.waits, h.flight = h.waits[:0], nil
	h.policy.Reset()
	h.zones, h.hits, h.decisions = h.zones[:0], h.hits[:0], h.decisions[:0]
	freeRequestHits.Put(h)
}
