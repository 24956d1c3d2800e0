package caddymodule

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyevents"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// refusedEvent is the name of the event in the app events.
const refusedEvent = "pg_ratelimit.refused"

// events emits refusals to the app events.
type events struct {
	app     *caddyevents.App
	ctx     caddy.Context
	sampler host.Sampler
}

// openEvents returns the emitter of refusals, or nil if the config has no app events.
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

// emit emits a refusal, at most one a second. Clients can cause any number of refusals, and a listener may
// run a program for each event.
func (e *events) emit(f *facts) {
	skipped, ok := e.sampler.Next(time.Now(), time.Second)
	if !ok {
		return
	}
	e.app.Emit(e.ctx, refusedEvent, map[string]any{"prefix": f.prefix(), "key": f.key(), "wait": f.wait,
		"status": f.status, "reason": f.reason, "skipped": skipped})
}

// placeholders is the prefix of the placeholders of a decision.
const placeholders = "http.pg_ratelimit."

// facts holds the fields of a decision for placeholders, events and traces.
type facts struct {
	limit, remaining int64 // -1 without a decision
	wait             int64 // seconds until a refused request would pass; 0 is none
	exceededBy       int64 // units beyond the quota of exceeded; 0 is none
	// The hit on the limit that refused or has the least left. Limit is nil without one.
	hit      ratelimit.Hit
	exceeded string // the prefix of a limit that let the request pass beyond its quota
	status   int    // of a refusal
	reason   string // of a refusal by the policy alone
	failed   bool   // no decision was possible
}

func factsOf(q *serve.Request) facts {
	outcome := &q.Outcome
	f := facts{limit: -1, remaining: -1, wait: outcome.RetrySeconds(), status: outcome.Status,
		reason: outcome.Reason.String(), failed: outcome.Err != nil, exceededBy: outcome.ExceededBy}
	if outcome.Hit < len(q.Hits) && (outcome.Decision != nil || outcome.Status != 0) {
		f.hit = q.Hits[outcome.Hit]
	}
	if d := outcome.Decision; d != nil {
		f.limit, f.remaining = d.Limit, d.Remaining
	}
	if f.exceededBy > 0 {
		f.exceeded = q.Hits[outcome.Exceeded].Limit.Prefix
	}
	return f
}

// prefix returns the prefix of the limit, and key the key as it is stored.
func (f *facts) prefix() string {
	if f.hit.Limit == nil {
		return ""
	}
	return f.hit.Limit.Prefix
}

func (f *facts) key() string {
	if f.hit.Limit == nil {
		return ""
	}
	return f.hit.StoredKey()
}

// value implements caddy.ReplacerFunc. A placeholder without a value is "", because Caddy leaves unknown
// placeholders in a text.
func (f *facts) value(name string) (any, bool) {
	rest, ok := strings.CutPrefix(name, placeholders)
	if !ok {
		return nil, false
	}
	switch rest {
	case "prefix":
		return f.prefix(), true
	case "key":
		return f.key(), true
	case "limit":
		return countText(f.limit, 0), true
	case "remaining":
		return countText(f.remaining, 0), true
	case "retry_after":
		return countText(f.wait, 1), true
	case "exceeded":
		return f.exceeded, true
	case "exceeded_by":
		return countText(f.exceededBy, 1), true
	}
	return nil, false
}

// countText returns a number of at least least as text, and "" for a smaller one.
func countText(n, least int64) string {
	if n < least {
		return ""
	}
	return strconv.FormatInt(n, 10)
}

// report adds the decision to the span of a request, and emits an event for a refusal.
func (h *Handler) report(q *serve.Request, f *facts) {
	if span := trace.SpanFromContext(q.HTTP.Context()); span.IsRecording() {
		f.addTo(span)
	}
	if q.Outcome.Status != 0 && h.events != nil {
		h.events.emit(f)
	}
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
		attribute.String("pg_ratelimit.prefix", f.prefix()), attribute.String("pg_ratelimit.key", f.key())}
	if f.limit >= 0 {
		attributes = append(attributes, attribute.Int64("pg_ratelimit.limit", f.limit),
			attribute.Int64("pg_ratelimit.remaining", f.remaining))
	}
	if f.wait > 0 {
		attributes = append(attributes, attribute.Int64("pg_ratelimit.retry_after", f.wait))
	}
	span.AddEvent("pg_ratelimit.decision", trace.WithAttributes(attributes...))
}
