package edge

import (
	"context"
	"errors"
	"net/http"
	"path"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// SitePolicy is the policy of a Site, compiled.
type SitePolicy struct {
	Key, User, Tier, Route Text // nil if they are not configured

	// Live is the policy of the database. It is set before Site.Prepare.
	Live *ProxyPolicy

	key     string   // the header that is the API key; "" if another text gives it
	headers []string // all headers that hold it
	tier    string   // unless Tier has placeholders
	reject  bool     // requests with keys that are not valid
}

// NewSitePolicy reads and checks a policy. keyExample and userExample are placeholders for errors. Errors are
// *ratelimit.FieldError, with the names of PolicyTable.
func NewSitePolicy(from Values, parse ParseText, keyExample, userExample string) (*SitePolicy, error) {
	p := &SitePolicy{tier: DefaultTier}
	var err error
	if p.Key, err = parseSender("api_key", from, parse, keyExample); err != nil {
		return nil, err
	}
	if p.User, err = parseSender("user", from, parse, userExample); err != nil {
		return nil, err
	}
	if p.Tier, err = parseIfSet("tier", from, parse); err != nil {
		return nil, err
	}
	if p.Route, err = parseIfSet("route", from, parse); err != nil {
		return nil, err
	}
	if p.Key != nil {
		parts := p.Key.Parts()
		p.headers = parts.Headers
		p.key = parts.Header
	}
	if p.Tier != nil {
		p.tier = ""
		if p.Tier.Fixed() {
			p.tier = p.Tier.Of(nil)
		}
	}
	var read Settings
	if err := Read(PolicyTable, from, &read); err != nil {
		return nil, err
	}
	p.reject = read.RejectUnknown
	return p, nil
}

// parseIfSet returns nil for text that was left out.
func parseIfSet(field string, from Values, parse ParseText) (Text, error) {
	if from[field] == "" {
		return nil, nil
	}
	return parse(field, from[field])
}

// parseSender reads text that says which sender a request is of, and so must have a placeholder.
func parseSender(field string, from Values, parse ParseText, example string) (Text, error) {
	text, err := parseIfSet(field, from, parse)
	if err == nil && text != nil && text.Fixed() {
		err = &ratelimit.FieldError{Field: field, Value: from[field], Want: "text with a placeholder, such as " + example + ": all requests would have the same"}
	}
	return text, err
}

// background is the context of all decisions. The context of a request is not used: a client that closes its connection
// must not fail the batch that its request is in, and its end would be logged as a failure of the database. The timeout
// bounds the wait.
var background = context.Background()

// ask asks the policy about a request, and does what it says. It reports whether the policy may have asked the database. The
// frequent case is a known API key, which needs the fewest steps: see policy.Recall.
func ask(s *Site, q *Request) (looked bool) {
	p := s.Policy
	looked = false
	q.Asked = true
	switch {
	case !setFacts(s, q):
		q.Verdict.Reset()
		policy.RefuseAmbiguous(&q.Verdict)
	case q.Key == "" || !policy.Recall(p.Live.live, q.Key, &q.Facts, &q.Verdict):
		looked = true
		err := p.Live.Ask(background, s.Decider.Timeout, q.Key, q.User, &q.Facts, &q.Verdict)
		if err != nil && s.Reopen != nil && errors.Is(err, ratelimit.ErrClosed) {
			s.Reopen(func(_ ratelimit.Store, replaced *ProxyPolicy) {
				err = replaced.Ask(background, s.Decider.Timeout, q.Key, q.User, &q.Facts, &q.Verdict)
			})
		}
		if err != nil {
			q.failure = err
			q.Outcome = NoDecision(s.Decider.OnError, err)
		}
	case !q.Verdict.Simple:
		ShadowsLast(&q.Verdict)
	}
	if q.failure == nil && q.Verdict.Reason != policy.NotRefused {
		q.Outcome = RefusalOf(&q.Verdict)
	}
	if q.failure != nil {
		LogNoDecision(s, q)
	}
	if s.Watcher != nil {
		s.Watcher.Asked(q)
	}
	return looked
}

// plainHost are the characters of hosts that are as policy.NormalHost returns them, unless they
// end with a dot.
const plainHost = "abcdefghijklmnopqrstuvwxyz0123456789-_."

// setFacts sets what the policy is to know of a request. It reports false for a path that has two meanings. The frequent
// forms are taken as they are, and all others are for functions: see package batch.
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
			f.Tier = DefaultTier
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

// HostOf is the host of a request as policy.NormalHost returns it.
func HostOf(r *http.Request) string {
	if strings.Trim(r.Host, plainHost) != "" || strings.HasSuffix(r.Host, ".") {
		return policy.NormalHost(r.Host)
	}
	return r.Host
}
