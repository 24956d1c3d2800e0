package caddymodule

import (
	"net/http"
	"strconv"
	"sync"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/pgratelimit/pg-ratelimit/internal/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Zone is one of several limits on a request. A request must have room in
// each that matches it, and is charged to all of them or to none.
type Zone struct {
	// Which requests the limit is for, as in a route: those that any of the
	// matcher sets matches. Default: all.
	MatcherSetsRaw caddyhttp.RawMatcherSets `json:"match,omitempty" caddy:"namespace=http.matchers"`

	Rule
}

// name is what errors call the zone, the ith.
func (z *Zone) name(i int) string {
	if z.Prefix == "" {
		return "zone " + strconv.Itoa(i+1)
	}
	return "zone " + strconv.Quote(z.Prefix)
}

// zoneError is what is wrong with a zone.
type zoneError struct {
	at   int // its place in Handler.Zones
	name string
	err  error
}

func (e *zoneError) Error() string { return e.name + ": " + e.err.Error() }

func (e *zoneError) Unwrap() error { return e.err }

// zone is a rule, ready for requests.
type zone struct {
	limit    *ratelimit.Limit
	matchers caddyhttp.MatcherSets
	key      key
	cost     int64  // 0 if costText has to be filled in
	costText string // with placeholders
	secret   bool
	counters counters
}

// hit is a request's claim on the zone.
func (z *zone) hit(r *http.Request, repl *caddy.Replacer) ratelimit.Hit {
	hit := ratelimit.Hit{Limit: z.limit, Key: z.key.of(r, repl), Cost: z.cost, Secret: z.secret}
	if hit.Cost == 0 {
		edge.SetCost(&hit, repl.ReplaceAll(z.costText, ""))
	}
	return hit
}

// storedKey is what the tables hold for a hit: what may be shown of its key.
func storedKey(hit *ratelimit.Hit) string {
	if hit.Secret {
		return ratelimit.DigestKey(hit.Key)
	}
	return ratelimit.StoredKey(hit.Key)
}

// claims are a request's hits, the zones that they are on, and what was
// decided of them.
type claims struct {
	zones     []*zone
	hits      []ratelimit.Hit
	decisions []ratelimit.Decision
}

// spareClaims saves each request the memory for its claims.
var spareClaims = sync.Pool{New: func() any { return new(claims) }}

// add claims a place in a zone.
func (c *claims) add(z *zone, hit ratelimit.Hit) {
	c.zones = append(c.zones, z)
	c.hits = append(c.hits, hit)
	c.decisions = append(c.decisions, ratelimit.Decision{})
}

// release gives the memory to another request, without the keys.
func (c *claims) release() {
	clear(c.zones)
	clear(c.hits)
	c.zones, c.hits, c.decisions = c.zones[:0], c.hits[:0], c.decisions[:0]
	spareClaims.Put(c)
}
