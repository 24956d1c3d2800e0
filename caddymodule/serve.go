package caddymodule

import (
	"errors"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/core/outcome"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// ServeHTTP passes the request on or refuses it.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request, next caddyhttp.Handler) error {
	p, err := h.limit(w, r)
	if p.writer == nil {
		return err
	}
	if p.flight != nil {
		defer p.flight.End() // also after a panic
		// Caddy's placeholders and matchers refer to r, so the next handlers must get r itself and not a
		// copy.
		before := r.Context()
		*r = *r.WithContext(p.flight.Context)
		defer func() { *r = *r.WithContext(before) }() // error routes do not end with the flight
	}
	if p.settling != nil {
		return serveSettled(p.settling, p.writer, r, next)
	}
	return next.ServeHTTP(p.writer, r)
}

// pass holds the writer of a request that passes, and what to end after the response.
type pass struct {
	writer   http.ResponseWriter // for the response
	flight   *serve.Flight       // to end after the response; nil if the request holds no slots
	settling *serve.Settling     // to end after the response; nil if the request is not settled
}

// serveSettled passes a request on and settles it after its response, even if the response is incomplete.
func serveSettled(settling *serve.Settling, w http.ResponseWriter, r *http.Request,
	next caddyhttp.Handler) error {
	status := http.StatusInternalServerError           // also after a panic
	settling.Begin(responseWriterIn(w).ResponseWriter) // not w, because it locks the Settling
	defer settling.End(&status, w.Header())
	err := next.ServeHTTP(w, r)
	var failure caddyhttp.HandlerError
	switch {
	case err == nil:
		status = 0
	case errors.As(err, &failure) && failure.StatusCode != 0:
		status = failure.StatusCode
	}
	return err
}

// freeRequests pools Requests, to save allocations.
var freeRequests = sync.Pool{New: func() any { return new(serve.Request) }}

// limit decides a request. If the request does not pass, the pass has no writer: limit has responded, or
// returns an error for the site's error routes.
func (h *Handler) limit(w http.ResponseWriter, r *http.Request) (p pass, err error) {
	repl := replacerIn(r)
	q := freeRequests.Get().(*serve.Request)
	q.HTTP, q.Replacer, q.Conn = r, repl, w
	q.Earlier, _ = r.Body.(*serve.Upload)
	defer func() {
		if p.writer == nil && q.Flight != nil { // also after a panic
			q.Flight.End()
		}
		serve.Release(q)
		freeRequests.Put(q)
	}()
	if err = serve.Decide(h.site, q); err != nil {
		return pass{}, err
	}
	if len(q.Hits) > 0 {
		h.count(q)
	} else if !q.HasVerdict && q.Outcome.Status == 0 {
		return pass{writer: w, flight: q.Flight}, nil // no limit applies to the request
	}
	rw := responseWriterIn(w) // the writer of an earlier handler
	if rw == nil {
		rw = &responseWriter{ResponseWriterWrapper: caddyhttp.ResponseWriterWrapper{ResponseWriter: w}}
		repl.Map(rw.facts.value)
		if q.Outcome.Status == 0 {
			w = rw
		}
	}
	rw.facts.set(q)
	if span := trace.SpanFromContext(r.Context()); span.IsRecording() {
		rw.facts.addTo(span)
	}
	respond.SetFields(w.Header(), h.site.Fields, h.site.Salt, &q.Outcome, q.Hits, q.Decisions)
	rw.headers = respond.HeadersIn(w.Header(), rw.values[:])
	if q.Settling != nil {
		rw.settling = append(rw.settling, q.Settling)
	}
	if q.Outcome.Status != 0 {
		h.emitRefused(&rw.facts)
		return pass{}, h.refuse(w, r, q)
	}
	return pass{writer: w, flight: q.Flight, settling: q.Settling}, nil
}

// clientAddress returns the address of the client according to trusted_proxies, or the zero Addr without a
// valid one. Caddy never assumes an address.
func clientAddress(r *http.Request) (address netip.Addr, assumed bool) {
	text, _ := caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string)
	address, _ = netip.ParseAddr(text)
	return address.Unmap().WithZone(""), false // a client can choose a long zone
}

// authenticated returns the user that an authentication in front of the handler has set, or "".
func authenticated(r *http.Request) string {
	user, _ := replacerIn(r).GetString("http.auth.user.id")
	return user
}

// replacerIn returns the replacer of a request, or a new one if it has none.
func replacerIn(r *http.Request) *caddy.Replacer {
	if repl, ok := r.Context().Value(caddy.ReplacerCtxKey).(*caddy.Replacer); ok {
		return repl
	}
	return caddy.NewReplacer()
}

// responseWriter replaces the X-RateLimit headers of an upstream by the module's headers. An informational
// response (such as 103) may remove the headers, so responseWriter also sets them again after such a
// response. All handlers of a request share one responseWriter.
type responseWriter struct {
	caddyhttp.ResponseWriterWrapper
	headers respond.Headers             // the headers of all limits so far
	values  [respond.HeaderCount]string // the memory of headers
	wrote   bool                        // the final headers were written

	facts    facts             // the facts for placeholders, which the latest handler sets
	settling []*serve.Settling // an element for each handler that settles the request
}

// responseWriterIn returns the responseWriter of an earlier handler, or nil.
func responseWriterIn(w http.ResponseWriter) *responseWriter {
	for {
		if rw, ok := w.(*responseWriter); ok {
			return rw
		}
		wrapper, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return nil
		}
		w = wrapper.Unwrap()
	}
}

// refusedEvent is the name of the event in the app events.
const refusedEvent = "pg_ratelimit.refused"

// placeholders is the prefix of the placeholders of a decision.
const placeholders = "http.pg_ratelimit."

// facts holds the facts about a decided request for placeholders, events and traces. It outlives the Request,
// which is reused.
type facts struct {
	respond.Outcome
	decision ratelimit.Decision // a copy of Outcome.Decision
	hit      ratelimit.Hit      // the hit of the outcome, or a hit on noLimit

	exceeded, exceededBy string // see serve.Request.Exceeded
}

// noLimit is the limit of a request without hits.
var noLimit ratelimit.Limit

// set sets the facts of a request.
func (f *facts) set(q *serve.Request) {
	*f = facts{Outcome: q.Outcome, hit: ratelimit.Hit{Limit: &noLimit}}
	if f.Decision != nil {
		f.decision = *f.Decision
		f.Decision = &f.decision
	}
	if f.Hit < len(q.Hits) && (f.Decision != nil || f.Status != 0) {
		f.hit = q.Hits[f.Hit]
	}
	f.exceeded, f.exceededBy = q.Exceeded()
}

// value implements caddy.ReplacerFunc. A placeholder without a value is "", because Caddy leaves unknown
// placeholders in a text.
func (f *facts) value(name string) (any, bool) {
	rest, ok := strings.CutPrefix(name, placeholders)
	if !ok {
		return nil, false
	}
	n, known, unit := int64(0), f.Decision != nil, option.Requests
	switch rest {
	case "outcome":
		return f.Kind.String(), true
	case "reason":
		return string(f.Reason), true
	case "prefix":
		return f.hit.Limit.Prefix, true
	case "key":
		return f.hit.StoredKey(), true
	case "exceeded":
		return f.exceeded, true
	case "exceeded_by":
		return f.exceededBy, true
	case "limit":
		n, unit = f.decision.Quota, f.Unit
	case "remaining":
		n, unit = f.decision.Remaining, f.Unit
	case "reset":
		n = f.decision.Reset.Add(time.Second - 1).Unix()
		known = known && !f.decision.Reset.IsZero()
	case "retry_after":
		n = f.RetrySeconds()
		known = n > 0
	default:
		return nil, false
	}
	if !known {
		return "", true
	}
	return unit.Amount(n), true
}

// addTo adds the decision to a span.
func (f *facts) addTo(span trace.Span) {
	attributes := []attribute.KeyValue{attribute.String("pg_ratelimit.outcome", f.Kind.String()),
		attribute.Bool("pg_ratelimit.passed", f.Status == 0),
		attribute.String("pg_ratelimit.reason", string(f.Reason)),
		attribute.String("pg_ratelimit.prefix", f.hit.Limit.Prefix),
		attribute.String("pg_ratelimit.key", f.hit.StoredKey())}
	amount := func(name string, n int64) attribute.KeyValue {
		if f.Unit == option.Money {
			return attribute.String(name, f.Unit.Amount(n))
		}
		return attribute.Int64(name, n)
	}
	if f.Decision != nil {
		attributes = append(attributes, amount("pg_ratelimit.limit", f.decision.Quota),
			amount("pg_ratelimit.remaining", f.decision.Remaining))
	}
	if wait := f.RetrySeconds(); wait > 0 {
		attributes = append(attributes, attribute.Int64("pg_ratelimit.retry_after", wait))
	}
	span.AddEvent("pg_ratelimit.decision", trace.WithAttributes(attributes...))
}

// emitRefused emits an event for a refusal, at most one a second, because clients can cause any number of
// refusals, and a listener may run a program for each event.
func (h *Handler) emitRefused(f *facts) {
	if h.events == nil {
		return
	}
	if skipped, ok := h.refusals.Allow(time.Now(), time.Second); ok {
		h.events.Emit(h.ctx, refusedEvent, map[string]any{"outcome": f.Kind.String(),
			"prefix": f.hit.Limit.Prefix, "key": f.hit.StoredKey(), "wait": f.RetrySeconds(),
			"status": f.Status, "reason": string(f.Reason), "skipped": skipped})
	}
}

// count counts the hits of a request that was decided or for which no decision was possible, and logs the
// limits that refused it.
func (h *Handler) count(q *serve.Request) {
	h.metrics.duration.Observe(time.Since(q.Began).Seconds())
	for i := range q.Hits {
		hit, d, terms := &q.Hits[i], &q.Decisions[i], q.Terms[i]
		passed, kind, source, text := q.Outcome.Status == 0 || hit.Independent, q.Outcome.Kind, noSource, ""
		if q.Err == nil {
			kind, source = outcome.Admitted, d.Source.String()
		}
		switch {
		case q.Err != nil && hit.Independent: // could not have refused the request
			continue
		case q.Err != nil:
		case d.Source == ratelimit.Undecided, d.Allowed && !passed: // another limit refused
			continue
		case !d.Allowed:
			kind = outcome.Limited
			if hit.Independent {
				text = "a limit in the mode shadow would have refused"
			} else if i == q.Outcome.Hit {
				text = "request refused"
			}
		}
		prefix := hit.Limit.Prefix
		if terms.Rule != "" {
			prefix = option.RulePrefix + terms.Rule + "/" + terms.Limit // the rule's name of now
		}
		h.metrics.decisions.WithLabelValues(prefix, kind.String(), strconv.FormatBool(passed),
			strconv.FormatBool(hit.Independent), source).Inc()
		if terms.Overage && !hit.Independent && q.Outcome.Overage > 0 && d.Remaining == 0 {
			h.metrics.overage.WithLabelValues(prefix).Inc()
		}
		if text == "" || !h.logger.Core().Enabled(zapcore.DebugLevel) {
			continue
		}
		h.logger.Debug(text, zap.String("prefix", hit.Limit.Prefix), zap.String("key", hit.StoredKey()),
			zap.String("unit", string(terms.CostSource.UnitOf())), zap.Int64("cost", hit.Cost),
			zap.Int64("limit", d.Quota), zap.Int64("remaining", d.Remaining),
			zap.Duration("retry_after", d.RetryAfter))
	}
}
