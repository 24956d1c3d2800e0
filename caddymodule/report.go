package caddymodule

import (
	"errors"
	"net/http"
	"strconv"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
)

// refusedEvent is the name of the event in the app events.
const refusedEvent = "pg_ratelimit.refused"

// events emits refusals to the app events.
type events struct {
	app     *caddyevents.App
	ctx     caddy.Context
	sampler host.Sampler
}

// openEvents returns nil if the config has no app for events.
func openEvents(ctx caddy.Context) (*events, error) {
	app, err := ctx.AppIfConfigured("events")
	if errors.Is(err, caddy.ErrNotConfigured) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &events{app: app.(*caddyevents.App), ctx: ctx}, nil
}

// emit emits a refusal, at most one a second. Clients choose how many requests are refused, and what listens
// may run a program.
func (e *events) emit(f *facts) {
	skipped, ok := e.sampler.Next(time.Now(), time.Second)
	if !ok {
		return
	}
	e.app.Emit(e.ctx, refusedEvent, map[string]any{"prefix": f.prefix, "key": f.key, "wait": f.wait,
		"status": f.status, "reason": f.reason, "skipped": skipped})
}

// facts are the fields of a decision in events, logs and traces.
type facts struct {
	prefix, key      string // of the limit that refused, or has the least left; the key as it is stored
	limit, remaining int64  // -1 without a decision
	wait             int64  // seconds until a refused request would pass; 0 is none
	status           int    // of a refusal
	reason           string // of a refusal by the policy alone
	failed           bool   // no decision was possible
}

func factsOf(q *serve.Request) facts {
	outcome := &q.Outcome
	f := facts{limit: -1, remaining: -1, wait: outcome.RetrySeconds(), status: outcome.Status,
		reason: outcome.Reason.String(), failed: outcome.Err != nil}
	if len(q.Hits) > 0 && (outcome.Decision != nil || outcome.Status != 0) {
		hit := &q.Hits[outcome.Hit]
		f.prefix, f.key = hit.Limit.Prefix, hit.StoredKey()
	}
	if d := outcome.Decision; d != nil {
		f.limit, f.remaining = d.Limit, d.Remaining
	}
	return f
}

// report adds a decision to the access log and to the span of the request, and emits an event, where they
// exist. A request that passes emits no event.
func (h *Handler) report(q *serve.Request) {
	if q.Outcome.Status == 0 && !h.isObserved(q.HTTP) {
		return
	}
	f := factsOf(q)
	f.setPlaceholders(q.Data.(*caddy.Replacer))
	if span := trace.SpanFromContext(q.HTTP.Context()); span.IsRecording() {
		f.addTo(span)
	}
	if q.Outcome.Status != 0 && h.events != nil {
		h.events.emit(&f)
	}
}

// The values of Handler.observed.
const (
	unknownWatch int32 = iota // before the first request
	unobserved
	observed
)

// isObserved reports whether the server of the handler writes access logs or has spans. Servers do not
// change.
func (h *Handler) isObserved(r *http.Request) bool {
	state := h.observed.Load()
	if state == unknownWatch {
		state = unobserved
		if server, ok := r.Context().Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server); ok &&
			(server.Logs != nil || hasSpans(server)) {
			state = observed
		}
		h.observed.Store(state)
	}
	return state == observed
}

func hasSpans(server *caddyhttp.Server) bool {
	for _, route := range server.NamedRoutes {
		if route != nil && traces(caddyhttp.RouteList{*route}) {
			return true
		}
	}
	return traces(server.Routes) || server.Errors != nil && traces(server.Errors.Routes)
}

// traces reports whether a route has the handler tracing.
func traces(routes caddyhttp.RouteList) bool {
	for i := range routes {
		for _, handler := range routes[i].Handlers {
			if module, ok := handler.(caddy.Module); ok && module.CaddyModule().
				ID == "http.handlers.tracing" {
				return true
			}
			if nested, ok := handler.(*caddyhttp.Subroute); ok && (traces(nested.Routes) ||
				nested.Errors != nil && traces(nested.Errors.Routes)) {
				return true
			}
		}
	}
	return false
}

// setPlaceholders sets {http.pg_ratelimit.*}. Placeholders without a value are set to "",
// because the text of an unknown placeholder is left as it is.
func (f *facts) setPlaceholders(repl *caddy.Replacer) {
	limit, remaining, wait := "", "", ""
	if f.limit >= 0 {
		limit, remaining = strconv.FormatInt(f.limit, 10), strconv.FormatInt(f.remaining, 10)
	}
	if f.wait > 0 {
		wait = strconv.FormatInt(f.wait, 10)
	}
	repl.Set("http.pg_ratelimit.prefix", f.prefix)
	repl.Set("http.pg_ratelimit.key", f.key)
	repl.Set("http.pg_ratelimit.limit", limit)
	repl.Set("http.pg_ratelimit.remaining", remaining)
	repl.Set("http.pg_ratelimit.retry_after", wait)
}

// addTo adds the decision to a span.
func (f *facts) addTo(span trace.Span) {
	outcome := "allowed"
	switch {
	case f.failed:
		outcome = "error"
	case f.status != 0:
		outcome = "refused"
	}
	attributes := []attribute.KeyValue{attribute.String("pg_ratelimit.outcome", outcome),
		attribute.String("pg_ratelimit.prefix", f.prefix), attribute.String("pg_ratelimit.key", f.key)}
	if f.limit >= 0 {
		attributes = append(attributes, attribute.Int64("pg_ratelimit.limit", f.limit),
			attribute.Int64("pg_ratelimit.remaining", f.remaining))
	}
	if f.wait > 0 {
		attributes = append(attributes, attribute.Int64("pg_ratelimit.retry_after", f.wait))
	}
	span.AddEvent("pg_ratelimit.decision", trace.WithAttributes(attributes...))
}
