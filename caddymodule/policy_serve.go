package caddymodule

import (
	"context"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
)

// askPolicy asks the policy about a request, and writes what it says to hits.policy. The outcome
// has the status of a refusal, or the error of a request that the policy could not decide.
func (a *compiledPolicy) askPolicy(h *Handler, r *http.Request, repl *caddy.Replacer, hits *requestHits) edge.Outcome {
	f := &hits.facts
	f.RejectUnknown = a.reject
	f.Tier = a.tier.of(repl)
	if f.Tier == "" {
		f.Tier = edge.DefaultTier
	}
	f.Route = a.route.of(repl)
	f.Address = clientAddress(r)
	f.Method = r.Method
	f.Host = policy.NormalHost(r.Host)
	f.Header = r.Header
	f.KeyHeaders = a.headers
	key, user := policy.Bearer(a.key.of(repl)), ""
	if key == "" && a.user.text != "" {
		user = a.user.of(repl)
		a.warnOfOrder(h, repl, user)
	}
	o := &hits.policy
	var err error
	if f.Path, err = policy.NormalPath(r.URL.EscapedPath()); err != nil {
		policy.RefuseAmbiguous(o)
	} else if err = h.decider.Ask(a.live, context.Background(), key, user, f, o); err != nil {
		outcome := edge.NoDecision(h.decider.OnError, err)
		a.counters.requests.WithLabelValues(withoutDecision(&outcome)).Inc()
		h.logNoDecision(&outcome)
		return outcome
	}
	a.live.Lift(o)
	a.counters.decided(o)
	h.logShadow(o)
	if !o.Refused() {
		return edge.Outcome{}
	}
	h.countRefusal(hits)
	if entry := h.logger.Check(zapcore.DebugLevel, "request refused by the policy"); entry != nil {
		fields := []zap.Field{zap.Stringer("reason", o.Reason), zap.Int("status", o.Status), zap.String("rule", o.Rule), zap.String("user", o.User),
			zap.Int64("key_id", o.KeyID), zap.String("tier", o.Tier), zap.Duration("retry_after", o.RetryAfter)}
		if o.Ban != nil {
			fields = append(fields, zap.String("ban", o.Ban.Reason))
		}
		entry.Write(fields...)
	}
	return edge.RefusalOf(o)
}

// clientAddress is the address of the client, as trusted_proxies says. The zero Addr is unknown, also
// of an address that cannot be read.
func clientAddress(r *http.Request) netip.Addr {
	text, _ := caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string)
	address, _ := netip.ParseAddr(text)
	return address.WithZone("") // a client can choose a long one
}

// logShadow logs what shadow rules without counts would have done.
func (h *Handler) logShadow(o *policy.Verdict) {
	for _, m := range o.Would {
		if entry := h.logger.Check(zapcore.DebugLevel, "a shadow rule would have acted"); entry != nil {
			entry.Write(zap.String("rule", m.Rule), zap.String("limit", m.Limit), zap.Int("status", m.Status), zap.String("user", o.User), zap.String("tier", o.Tier))
		}
	}
}

// warnOfOrder warns once if the user is a placeholder of an authentication that has not run.
func (a *compiledPolicy) warnOfOrder(h *Handler, repl *caddy.Replacer, user string) {
	if user != "" || !strings.HasPrefix(a.user.single, "http.auth.") {
		return
	}
	if _, known := repl.Get(a.user.single); !known && a.noUser.CompareAndSwap(false, true) {
		h.logger.Warn("no authentication has run before this handler: put both into a route block, with pg_ratelimit after the authentication",
			zap.String("user", "{"+a.user.single+"}"))
	}
}

// setPolicyPlaceholders sets the placeholders of Policy.
func setPolicyPlaceholders(repl *caddy.Replacer, o *policy.Verdict) {
	key := ""
	if o.KeyID != 0 {
		key = strconv.FormatInt(o.KeyID, 10)
	}
	repl.Set("http.pg_ratelimit.user", o.User)
	repl.Set("http.pg_ratelimit.tier", o.Tier)
	repl.Set("http.pg_ratelimit.key_id", key)
	repl.Set("http.pg_ratelimit.rule", o.Rule)
	repl.Set("http.pg_ratelimit.reason", o.Reason.String())
}

// countPolicy counts and logs the decisions on the limits of the policy, which are the last
// of a request, and counts refusals for bans.
func (h *Handler) countPolicy(hits *requestHits, outcome *edge.Outcome) {
	o := &hits.policy
	if outcome.Err != nil {
		h.policy.counters.undecided(o.Marks, withoutDecision(outcome))
		return
	}
	if outcome.Paused {
		h.policy.counters.undecided(o.Marks, "paused")
		return
	}
	first := len(hits.decisions) - len(o.Marks)
	for i, m := range o.Marks {
		d := &hits.decisions[first+i]
		h.policy.counters.limit(m, d, outcome)
		if m.Shadow && !d.Allowed {
			if entry := h.logger.Check(zapcore.DebugLevel, "a shadow rule would have refused"); entry != nil {
				entry.Write(zap.String("rule", m.Rule), zap.String("limit", m.Limit), zap.String("key", hits.hits[first+i].StoredKey()),
					zap.Int64("quota", d.Limit), zap.Duration("retry_after", d.RetryAfter))
			}
		}
	}
	if outcome.Status != 0 {
		h.countRefusal(hits)
	}
}

// countRefusal counts a refused request for bans.
func (h *Handler) countRefusal(hits *requestHits) {
	var bans []*policy.BanAfter
	for _, z := range hits.zones {
		bans = append(bans, z.ban)
	}
	o := &hits.policy
	h.policy.live.AddRefusals(&edge.Sender{KeyID: o.KeyID, User: o.User, Address: hits.facts.Address}, bans, hits.hits, hits.decisions, o)
}
