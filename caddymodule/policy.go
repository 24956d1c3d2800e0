package caddymodule

import (
	"strconv"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/pgratelimit/pg-ratelimit/internal/core/outcome"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
)

// Policy applies the rules in the database. The rules determine which limits apply to which requests. A
// change of a rule takes effect in all proxies within a second.
//
// Placeholder | Description
// ------------|------------
// `{http.pg_ratelimit.user}` | The user of the request; empty without one
// `{http.pg_ratelimit.tier}` | The tier of the request
// `{http.pg_ratelimit.key_id}` | The number of the API key in the database; empty without one
// `{http.pg_ratelimit.rule}` | The rule that refused or exempted the request, else the first that charges it
type Policy struct {
	PolicySettings
}

// OnVerdict implements serve.Watcher. It counts and logs the verdict, and sets the placeholders of Policy.
func (h *Handler) OnVerdict(q *serve.Request) {
	v := &q.Verdict
	repl := q.Replacer.(*caddy.Replacer)
	user, key := v.User, ""
	switch {
	case v.KeyID == 0:
	case v.Identity == nil: // a key that has ended authenticates nobody
		user = ""
	default:
		key = strconv.FormatInt(v.KeyID, 10)
	}
	repl.Set("http.pg_ratelimit.user", user)
	repl.Set("http.pg_ratelimit.tier", v.Tier)
	repl.Set("http.pg_ratelimit.key_id", key)
	repl.Set("http.pg_ratelimit.rule", v.Rule)
	if q.Key == "" && q.User == "" {
		h.warnOfOrder(repl)
	}
	h.metrics.policyRequests.WithLabelValues(q.Outcome.Kind.String(), reasonOf(q),
		strconv.FormatBool(q.Outcome.Status == 0)).Inc()
	if q.Outcome.Err != nil {
		return
	}
	for _, t := range v.ShadowTerms {
		if entry := h.logger.Check(zapcore.DebugLevel, "a shadow rule would have acted"); entry != nil {
			entry.Write(zap.String("rule", t.Rule), zap.String("limit", t.Limit), zap.Int("status", t.Status),
				zap.String("user", v.User), zap.String("tier", v.Tier))
		}
	}
	if q.Outcome.Status == 0 {
		return
	}
	if entry := h.logger.Check(zapcore.DebugLevel, "request refused by the policy"); entry != nil {
		fields := []zap.Field{zap.String("reason", string(v.Reason)), zap.Int("status", v.Status),
			zap.String("rule", v.Rule), zap.String("user", v.User), zap.Int64("key_id", v.KeyID),
			zap.String("tier", v.Tier), zap.Duration("retry_after", v.RetryAfter)}
		if v.Ban != nil {
			fields = append(fields, zap.String("ban", v.Ban.Reason))
		}
		entry.Write(fields...)
	}
}

// warnOfOrder warns once that the authentication that sets the user has not run before the handler.
func (h *Handler) warnOfOrder(repl *caddy.Replacer) {
	user := h.site.Policy.User
	if user == nil || !user.User || len(user.Placeholders) != 1 {
		return
	}
	if _, known := repl.Get(user.Placeholders[0]); !known && h.noUser.CompareAndSwap(false, true) {
		h.logger.Warn("no authentication has run before this handler: put both into a route block, with "+
			"pg_ratelimit after the authentication",
			zap.String("user", "{"+user.Placeholders[0]+"}"))
	}
}

// reasonOf returns the reason for the outcome of the policy as a label.
func reasonOf(q *serve.Request) string {
	v := &q.Verdict
	switch {
	case q.Outcome.Kind != outcome.Admitted:
		return string(q.Outcome.Reason)
	case v.Exempt:
		return "exempt"
	case len(v.Hits) > 0:
		return "charged"
	}
	return "free"
}
