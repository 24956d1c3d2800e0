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
	if reason := setFacts(s, q); reason != policy.NoReason {
		policy.Clear(v)
		policy.Refuse(v, reason)
	} else if q.Key == "" || !policy.Recall(s.Policy.Rules, q.Key, &q.Facts, v) {
		q.failure = s.Policy.Rules.Evaluate(background, s.Timeout, q.Key, q.User, &q.Facts, v)
		if s.reopen != nil && errors.Is(q.failure, ratelimit.ErrClosed) {
			s.reopen(func(repeated *host.Databases) {
				q.failure = repeated.Policy.Evaluate(background, s.Timeout, q.Key, q.User, &q.Facts, v)
			})
		}
	}
	if v.KeyID != 0 {
		q.AcceptedKey = q.Key
	}
	if q.Facts.Waited {
		q.Facts.Waited = false
		q.Arrived = time.Now() // the limits have the whole timeout
	}
	switch {
	case q.failure != nil:
		q.Outcome = NoDecision(s.OnError, q.failure)
		LogNoDecision(q)
	case v.Reason != policy.NoReason:
		q.Outcome = refusal(v.Status, v.Reason)
		q.Outcome.Message = v.Message
		q.Outcome.RetryAfter = v.RetryAfter
	}
	if s.Watcher != nil {
		s.Watcher.OnVerdict(q)
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
// setFacts stores a value in its frequent form directly and calls functions only to normalize other forms,
// because an interpreted call takes long.
func setFacts(s *Site, q *Request) policy.Reason {
	p := s.Policy
	f := &q.Facts
	r := q.HTTP
	value, key := "", ""
	reason := policy.NoReason
	several := false
	// No header has the name "".
	if values := r.Header[p.key]; len(values) == 1 && !policy.OtherSpelling(r.Header, p.key) {
		value = values[0]
		key = strings.TrimPrefix(value, "Bearer ")
	}
	q.User = ""
	isFrequent := strings.HasPrefix(key, policy.KeyPrefix) ||
		key == value && key != "" && !strings.EqualFold(key, "bearer")
	if !isFrequent || strings.Trim(key, plainKey) != "" {
		key, several = reading.APIKey(p.Keys, &q.Input)
		if key == "" && !several && p.User != nil {
			q.User, several = p.User.One(&q.Input)
		}
	}
	if several {
		reason = policy.UnknownKey
	}
	q.Key = key
	f.Key = key
	f.RejectUnknown = p.reject
	f.Method = r.Method
	f.HTTP = r
	f.Preflight = r.Method == http.MethodOptions && policy.IsPreflight(r.Method, r.Header)
	f.NeedsKey = p.needsKey && !f.Preflight
	f.KeyHeaders = p.headers
	f.DefaultTier = p.tier
	if f.DefaultTier == "" {
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
	f.Address, f.AddressAssumed = s.Clients.Address(r)
	if !f.Address.IsValid() {
		warnOfUnknown(s)
	}
	f.Host = reading.HostOf(r)
	f.Path = r.URL.EscapedPath()
	if path.Clean("/"+f.Path) != f.Path || strings.ContainsAny(f.Path, "%\\;") {
		f.Path = policy.NormalPath(f.Path)
		if f.Path == "" {
			reason = policy.AmbiguousPath
		}
	}
	return reason
}
