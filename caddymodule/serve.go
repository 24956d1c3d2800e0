package caddymodule

import (
	"errors"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// ServeHTTP passes the request on, or refuses it.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	var flight *serve.Flight
	defer func() { flight.End() }() // also after a panic
	w, settling, err := h.admit(w, r, &flight)
	if err != nil || w == nil {
		return err
	}
	if flight != nil {
		// Caddy's placeholders and matchers hold r, so that the handlers behind this one must get no copy of
		// it.
		before := r.Context()
		*r = *r.WithContext(flight.Context)
		defer func() { *r = *r.WithContext(before) }() // error routes do not end with the flight
	}
	if settling != nil {
		return serveSettled(settling, w, r, next)
	}
	return next.ServeHTTP(w, r)
}

// freeRequests holds memory for the next requests, to save allocations.
var freeRequests = sync.Pool{New: func() any { return new(serve.Request) }}

// admit returns the writer of the response if the request passes, and what is to be settled after it, or nil.
// If it does not pass, admit has responded and returns nil, or returns an error for the site's error routes.
// It sets the flight of a request that has one.
func (h *Handler) admit(w http.ResponseWriter, r *http.Request, flight **serve.Flight) (http.ResponseWriter,
	*serve.Settling, error) {
	repl, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer)
	if !ok {
		repl = caddy.NewReplacer()
	}
	q := freeRequests.Get().(*serve.Request)
	q.HTTP, q.Data = r, repl
	defer func() {
		*flight = q.Flight
		q.Release()
		freeRequests.Put(q)
	}()
	if err := serve.Decide(h.site, q); err != nil {
		return nil, nil, err
	}
	if !q.Asked && len(q.Hits) == 0 {
		return w, nil, nil // no limit is for the request
	}
	changes := responseWriterIn(w) // that of an earlier handler
	if changes == nil {
		changes = &responseWriter{ResponseWriterWrapper: caddyhttp.ResponseWriterWrapper{ResponseWriter: w}}
		repl.Map(changes.facts.value)
		if q.Outcome.Status == 0 {
			w = changes
		}
	}
	changes.facts = factsOf(q)
	h.report(q, &changes.facts)
	h.setHeaders(changes, q)
	if q.Outcome.Status != 0 {
		return nil, nil, h.refuse(w, r, q)
	}
	return w, q.Settling, nil
}

// clientAddress is the address of the client, as trusted_proxies says. The zero Addr is an unknown address,
// or one that cannot be parsed.
func clientAddress(r *http.Request) (address netip.Addr, assumed bool) {
	text, _ := caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string)
	address, _ = netip.ParseAddr(text)
	return address.WithZone(""), false // a client can choose a long one
}

// setHeaders sets the headers of a response.
func (h *Handler) setHeaders(w *responseWriter, q *serve.Request) {
	outcome, fields := &q.Outcome, h.site.Fields
	// an earlier handler may have set those of a tighter limit
	if outcome.Status == 0 && outcome.Decision != nil {
		fields.X = fields.X && !respond.HasLessRemaining(w.Header(), outcome.Decision.Remaining)
	}
	own, ownFields := respond.SetFields(w.Header(), fields, h.site.Salt, outcome, q.Hits, q.Decisions)
	if own != nil {
		w.own = own
	}
	if ownFields != nil {
		w.fields = ownFields
	}
	if outcome.Overage > 0 && h.site.Fields.X {
		respond.SetOverage(w.Header(), outcome.Overage)
		w.overage = outcome.Overage
	}
	if q.Settling != nil {
		w.settling = append(w.settling, q.Settling)
	}
}

// watcher counts and logs what happens to the requests of a handler.
type watcher struct{ *Handler }

// Decided implements serve.Watcher.
func (h watcher) Decided(q *serve.Request) {
	h.duration.Observe(time.Since(q.Began).Seconds())
	if q.Asked {
		h.decidedPolicy(q)
	}
	outcome := &q.Outcome
	if outcome.Err != nil {
		for _, z := range q.Limits.Zones {
			switch {
			case z.Mode == settings.Shadow:
			case errors.Is(outcome.Err, ratelimit.ErrOverloaded):
				h.counters[z.Index].overloaded.Inc()
			case outcome.Status == 0:
				h.counters[z.Index].errorPassed.Inc()
			default:
				h.counters[z.Index].errorRefused.Inc()
			}
		}
		return
	}
	for i, z := range q.Limits.Zones {
		c, d := &h.counters[z.Index], &q.Decisions[i]
		switch {
		case z.Mode == settings.Shadow:
			h.decidedShadow(c, &q.Hits[i], d)
		case outcome.Status == 0:
			c.allowed.inc(d.Source)
			if d.Source == ratelimit.FromLease {
				c.leased.Inc()
			}
		case !d.Allowed:
			c.denied.inc(d.Source)
			if d.Source == ratelimit.FromBlocked {
				c.blocked.Inc()
			}
		}
	}
	if outcome.Status == 0 {
		return
	}
	if entry := h.logger.Check(zapcore.DebugLevel, "request refused"); entry != nil {
		hit, d := &q.Hits[outcome.Hit], outcome.Decision
		entry.Write(zap.String("prefix", hit.Limit.Prefix), zap.String("key", hit.StoredKey()),
			zap.Int64("cost", hit.Cost),
			zap.Int64("limit", d.Limit), zap.Int64("remaining", d.Remaining), zap.Duration("retry_after",
				d.RetryAfter))
	}
}

// decidedShadow counts and logs the decision on a limit in the mode shadow.
func (h *Handler) decidedShadow(c *counters, hit *ratelimit.Hit, d *ratelimit.Decision) {
	switch {
	case d.Source == ratelimit.Undecided:
	case d.Allowed:
		c.wouldAllow.inc(d.Source)
	default:
		c.wouldDeny.inc(d.Source)
		if entry := h.logger.Check(zapcore.DebugLevel,
			"a limit in the mode shadow would have refused"); entry != nil {
			entry.Write(zap.String("prefix", hit.Limit.Prefix), zap.String("key", hit.StoredKey()),
				zap.Int64("limit", d.Limit), zap.Duration("retry_after", d.RetryAfter))
		}
	}
}
