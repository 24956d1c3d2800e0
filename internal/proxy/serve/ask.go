package serve

import (
	"errors"
	"net/http"
	"path"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// ask asks the policy about a request, and does what it says. The frequent case is a known API key, which
// needs the fewest steps: see policy.Recall.
func ask(s *Site, q *Request) {
	q.Asked = true
	known := true
	switch {
	case !setFacts(s, q):
		q.Verdict.Reset()
		policy.RefuseAmbiguous(&q.Verdict)
	case q.Key == "" || !policy.Recall(s.Policy.Live, q.Key, &q.Facts, &q.Verdict):
		known = false
	}
	if !known {
		err := evaluate(s, q, s.Policy.Live)
		if s.reopen != nil && errors.Is(err, ratelimit.ErrClosed) {
			s.reopen(func(again *host.Handle) { err = evaluate(s, q, again.Policy) })
		}
		q.failure = err
	}
	v := &q.Verdict
	switch {
	case q.failure != nil:
		q.Outcome = NoDecision(s.OnError, q.failure)
		LogNoDecision(s, q)
	case v.Reason != policy.NotRefused:
		q.Outcome = respond.Outcome{Status: v.Status, Reason: v.Reason, Message: v.Message,
			Wait: v.RetryAfter}
	}
	if s.Watcher != nil {
		s.Watcher.Asked(q)
	}
}

// evaluate asks a policy, perhaps in the database. With an error, Verdict is without what is unknown: if the
// request may pass, its hits are still taken.
func evaluate(s *Site, q *Request, live *policy.Policy) error {
	return live.Evaluate(background, s.Timeout, q.Key, q.User, &q.Facts, &q.Verdict)
}

// plainHost are the characters of hosts that policy.NormalHost does not change, unless they end with a dot.
const plainHost = "abcdefghijklmnopqrstuvwxyz0123456789-_."

// setFacts sets the facts of a request for the policy. It reports false for a path that has two meanings. The
// frequent forms are taken as they are, and functions change all others: an interpreted call takes long.
func setFacts(s *Site, q *Request) bool {
	p := s.Policy
	f := &q.Facts
	r := q.HTTP
	key := ""
	if values := r.Header[p.key]; len(values) == 1 { // no header has the name ""
		key = strings.TrimPrefix(values[0], "Bearer ")
	}
	q.User = ""
	if !strings.HasPrefix(key, policy.KeyPrefix) || strings.TrimSpace(key) != key {
		key = ""
		if p.Key != nil {
			key = policy.Bearer(p.Key.Of(q))
		}
		if key == "" && p.User != nil {
			q.User = p.User.Of(q)
		}
	}
	q.Key = key
	f.RejectUnknown = p.reject
	f.Method = r.Method
	f.Header = r.Header
	f.KeyHeaders = p.headers
	f.Tier = p.tier
	if f.Tier == "" {
		f.Tier = p.Tier.Of(q)
		if f.Tier == "" {
			f.Tier = settings.DefaultTier
		}
	}
	if p.Route != nil {
		f.Route = p.Route.Of(q)
	}
	f.Address, f.Assumed = s.Address(r)
	f.Host = HostOf(r)
	f.Path = r.URL.EscapedPath()
	if path.Clean("/"+f.Path) != f.Path || strings.ContainsAny(f.Path, "%\\;") {
		normal, err := policy.NormalPath(f.Path)
		f.Path = normal
		return err == nil
	}
	return true
}

// HostOf returns the host of a request as policy.NormalHost does.
func HostOf(r *http.Request) string {
	if strings.Trim(r.Host, plainHost) != "" || strings.HasSuffix(r.Host, ".") {
		return policy.NormalHost(r.Host)
	}
	return r.Host
}
