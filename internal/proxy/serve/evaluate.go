package serve

import (
	"errors"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/reading"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// evaluatePolicy evaluates the policy for a request and applies the verdict. The frequent case, a cached API
// key, takes the fewest steps: see policy.Recall. After a failure, the verdict has only the hits of rules
// that do not need the sender. These hits are charged if the request may pass.
func evaluatePolicy(s *Site, q *Request) {
	q.HasVerdict = true
	v := &q.Verdict
	reason := setFacts(s, q)
	if reason != policy.NoReason || q.Key == "" || !policy.Recall(s.Policy.Rules, q.Key, &q.Facts, v) {
		evaluate(s, q, reason)
	}
	if v.KeyID != 0 {
		q.AcceptedKey = q.Key
	}
	if v.Reason != policy.NoReason && q.failure == nil {
		q.Outcome = refusal(v.Status, v.Reason)
		q.Outcome.Message = v.Message
		q.Outcome.RetryAfter = v.RetryAfter
	}
	if s.Watcher != nil {
		s.Watcher.OnVerdict(q)
	}
}

// evaluate evaluates the policy for a request that policy.Recall cannot decide, or refuses it for a reason.
func evaluate(s *Site, q *Request, reason policy.Reason) {
	v := &q.Verdict
	if reason != policy.NoReason {
		policy.Clear(v)
		policy.Refuse(v, reason)
		return
	}
	q.failure = s.Policy.Rules.Evaluate(background, s.Timeout, q.Key, q.User, &q.Facts, v)
	if s.reopen != nil && errors.Is(q.failure, ratelimit.ErrClosed) {
		s.reopen(func(reopened *host.Databases) {
			q.failure = reopened.Policy.Evaluate(background, s.Timeout, q.Key, q.User, &q.Facts, v)
		})
	}
	if q.Facts.Waited {
		q.Facts.Waited = false
		q.Arrived = time.Now() // the limits have the whole timeout
	}
	if q.failure != nil {
		q.Outcome = NoDecision(s.OnError, q.failure)
		LogNoDecision(q)
	}
}

// refusal returns the outcome of a request that is refused for a reason.
func refusal(status int, reason policy.Reason) respond.Outcome {
	return respond.Outcome{Kind: reason.Outcome(), Status: status, Reason: reason}
}

// plainKey has the characters of keys that reading.APIKey does not change.
const plainKey = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_."

// setFacts sets the facts of a request for the policy. setFacts returns a reason to refuse the request: an
// ambiguous path, or several values of the API key, the user or the tier, of which the server may read any.
// setFacts stores a value in its frequent form directly and calls functions only for other forms, because an
// interpreted call takes long.
func setFacts(s *Site, q *Request) policy.Reason {
	p := s.Policy
	r := q.HTTP
	value, key := "", ""
	reason := policy.NoReason
	// No header has the name "".
	if values := r.Header[p.key]; len(values) == 1 && !policy.OtherSpelling(r.Header, p.key) {
		value = values[0]
		key = strings.TrimPrefix(value, "Bearer ")
	}
	isFrequent := len(key) > len("bearer") && (key == value || strings.HasPrefix(key, policy.KeyPrefix))
	if !isFrequent || strings.Trim(key, plainKey) != "" {
		key, reason = readSender(p, q)
	}
	q.Key = key
	address, assumed := s.Clients.Address(r)
	if !address.IsValid() {
		warnOfUnknown(s)
	}
	q.Facts = policy.Facts{Key: key, RejectUnknown: p.reject, Method: r.Method, HTTP: r,
		NeedsKey: p.needsKey, KeyHeaders: p.headers, DefaultTier: p.tier, Address: address,
		AddressAssumed: assumed, Host: reading.HostOf(r)}
	if p.tier == "" || p.Route != nil || r.Method == http.MethodOptions {
		reason = setOtherFacts(p, q, reason)
	}
	escaped := r.URL.EscapedPath()
	if path.Clean("/"+escaped) != escaped || strings.ContainsAny(escaped, "%\\;") {
		escaped = policy.NormalPath(escaped)
		if escaped == "" {
			reason = policy.AmbiguousPath
		}
	}
	q.Facts.Path = escaped
	return reason
}

// readSender returns the API key of a request, or without one sets its user.
func readSender(p *Policy, q *Request) (string, policy.Reason) {
	key, several := reading.APIKey(p.Keys, &q.Input)
	if key == "" && !several && p.User != nil {
		q.User, several = p.User.One(&q.Input)
	}
	if several {
		return key, policy.UnknownKey
	}
	return key, policy.NoReason
}

// setOtherFacts sets the facts that few requests have, and returns reason or another.
func setOtherFacts(p *Policy, q *Request, reason policy.Reason) policy.Reason {
	f := &q.Facts
	f.Preflight = f.Method == http.MethodOptions && policy.IsPreflight(f.Method, q.HTTP.Header)
	f.NeedsKey = f.NeedsKey && !f.Preflight
	if f.DefaultTier == "" {
		several := false
		f.DefaultTier, several = p.Tier.One(&q.Input)
		if several {
			reason = policy.UnknownKey
		}
		if f.DefaultTier == "" {
			f.DefaultTier = settings.DefaultTier
		}
	}
	if p.Route != nil {
		f.SetRoutes(p.Route.Values(&q.Input))
	}
	return reason
}
