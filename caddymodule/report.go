package caddymodule

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

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
	exceeded string             // the prefix of a limit that let the request pass beyond its quota
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
	if f.ExceededBy > 0 {
		f.exceeded = q.Hits[f.Exceeded].Limit.Prefix
	}
}

// value implements caddy.ReplacerFunc. A placeholder without a value is "", because Caddy leaves unknown
// placeholders in a text.
func (f *facts) value(name string) (any, bool) {
	rest, ok := strings.CutPrefix(name, placeholders)
	if !ok {
		return nil, false
	}
	n, known := int64(0), f.Decision != nil
	switch rest {
	case "prefix":
		return f.hit.Limit.Prefix, true
	case "key":
		return f.hit.StoredKey(), true
	case "exceeded":
		return f.exceeded, true
	case "limit":
		n = f.decision.Quota
	case "remaining":
		n = f.decision.Remaining
	case "retry_after":
		n = f.RetrySeconds()
		known = n > 0
	case "exceeded_by":
		n = f.ExceededBy
		known = n > 0
	default:
		return nil, false
	}
	if !known {
		return "", true
	}
	return strconv.FormatInt(n, 10), true
}

// report adds the decision to the span of a request, and emits an event for a refusal. It emits at most one
// event a second, because clients can cause any number of refusals, and a listener may run a program for each
// event.
func (h *Handler) report(r *http.Request, f *facts) {
	if span := trace.SpanFromContext(r.Context()); span.IsRecording() {
		f.addTo(span)
	}
	if f.Status == 0 || h.events == nil {
		return
	}
	if skipped, ok := h.refusals.Allow(time.Now(), time.Second); ok {
		h.events.Emit(h.ctx, refusedEvent, map[string]any{"prefix": f.hit.Limit.Prefix,
			"key": f.hit.StoredKey(), "wait": f.RetrySeconds(), "status": f.Status,
			"reason": f.Reason.String(), "skipped": skipped})
	}
}

// addTo adds the decision to a span.
func (f *facts) addTo(span trace.Span) {
	outcome := "allowed"
	switch {
	case f.Err != nil:
		outcome = "error"
	case f.Status != 0:
		outcome = "refused"
	}
	attributes := []attribute.KeyValue{attribute.String("pg_ratelimit.outcome", outcome),
		attribute.String("pg_ratelimit.prefix", f.hit.Limit.Prefix),
		attribute.String("pg_ratelimit.key", f.hit.StoredKey())}
	if f.Decision != nil {
		attributes = append(attributes, attribute.Int64("pg_ratelimit.limit", f.decision.Quota),
			attribute.Int64("pg_ratelimit.remaining", f.decision.Remaining))
	}
	if wait := f.RetrySeconds(); wait > 0 {
		attributes = append(attributes, attribute.Int64("pg_ratelimit.retry_after", wait))
	}
	span.AddEvent("pg_ratelimit.decision", trace.WithAttributes(attributes...))
}

// count counts the hits of a request that was decided or for which no decision was possible, and logs the
// limits that refused it.
func (h *Handler) count(q *serve.Request) {
	h.metrics.duration.Observe(time.Since(q.Began).Seconds())
	for i := range q.Hits {
		hit, d, mark := &q.Hits[i], &q.Decisions[i], serve.MarkOf(q, i)
		outcome, source, text := "allowed", d.Source.String(), ""
		switch {
		case q.Err != nil && hit.Independent: // could not have refused the request
			continue
		case q.Err != nil:
			outcome, source = undecidedOutcome(q.Err, q.Outcome.Status), noSource
		case d.Source == ratelimit.Undecided:
			continue
		case hit.Independent && d.Allowed:
			outcome = "would_allow"
		case hit.Independent:
			outcome, text = "would_deny", "a limit in the mode shadow would have refused"
		case !d.Allowed:
			outcome = "denied"
			if i == q.Outcome.Hit {
				text = "request refused"
			}
		case q.Outcome.Status != 0: // another limit refused
			continue
		case mark != nil && mark.Overage && q.Outcome.Overage > 0 && d.Remaining == 0:
			outcome = "overage"
		}
		if mark != nil {
			h.metrics.policyDecisions.WithLabelValues(mark.Rule, mark.Limit, outcome, source).Inc()
		} else {
			h.metrics.decisions.WithLabelValues(hit.Limit.Prefix, outcome, source).Inc()
		}
		if text == "" || !h.logger.Core().Enabled(zapcore.DebugLevel) {
			continue
		}
		h.logger.Debug(text, zap.String("prefix", hit.Limit.Prefix), zap.String("key", hit.StoredKey()),
			zap.Int64("cost", hit.Cost), zap.Int64("limit", d.Quota), zap.Int64("remaining", d.Remaining),
			zap.Duration("retry_after", d.RetryAfter))
	}
}

// undecidedOutcome returns the outcome of a request without a decision, as a label. status is 0 if it passed.
func undecidedOutcome(err error, status int) string {
	switch {
	case errors.Is(err, ratelimit.ErrOverloaded):
		return "overloaded"
	case status == http.StatusServiceUnavailable:
		return "error_refused"
	}
	return "error_passed"
}

// policyOutcome returns the policy's verdict on a request as a label.
func policyOutcome(q *serve.Request) string {
	v := &q.Verdict
	switch {
	case q.Outcome.Err != nil:
		return undecidedOutcome(q.Outcome.Err, q.Outcome.Status)
	case v.Refused():
		return v.Reason.String()
	case v.Exempt:
		return "exempt"
	case len(v.Hits) > 0:
		return "charged"
	}
	return "free"
}
