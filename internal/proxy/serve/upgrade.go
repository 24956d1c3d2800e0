package serve

import (
	"net/http"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
)

// isUpgrade reports whether a request asks for another protocol, in which usage cannot be read.
func isUpgrade(r *http.Request) bool {
	return len(r.Header["Upgrade"]) > 0 || r.Method == http.MethodConnect
}

// checkHiddenPost reports whether the policy or a limit of tokens refuses a request without the store, or a
// matcher fails. If limits of tokens or money may apply, it handles a request that a server may answer as it
// answers a POST, with any number of tokens: an upgrade, or a request with another method in its headers. If
// they would apply to the request as a POST, checkHiddenPost removes what the server need not follow, and
// refuses an upgrade, also in place of a limit of 0. Otherwise that refusal stays.
func checkHiddenPost(s *Site, q *Request, mayApply, exempt bool) (bool, error) {
	r := q.HTTP
	method := r.Method
	before := q.Outcome
	if !mayApply || before.Status != 0 && before.Reason != policy.NoQuota ||
		!isUpgrade(r) && (method == http.MethodPost || !policy.HasMethod(r.Header)) {
		return before.Status != 0, nil
	}
	q.Outcome = respond.Outcome{}
	r.Method = http.MethodPost // not that of a copy, because Caddy's placeholders refer to the request itself
	meets, err := meetsLimits(s, q, exempt)
	r.Method = method
	if meets {
		removeOffers(r)
		if isUpgrade(r) {
			if q.Outcome.Status == 0 {
				q.Outcome = refusal(http.StatusBadRequest, policy.Upgrade)
				if r.ProtoMajor == 1 && method != http.MethodConnect {
					q.Outcome.Status = http.StatusUpgradeRequired
				}
			}
			return true, nil
		}
	}
	q.Outcome = before
	return err != nil || before.Status != 0, err
}

// meetsLimits reports whether enforced limits of tokens or money apply to a POST, or the policy would refuse
// it where such limits are. If one of the configuration applies, meetsLimits may set the Outcome.
func meetsLimits(s *Site, q *Request, exempt bool) (bool, error) {
	if !exempt && s.needsMatch {
		err := match(s, q)
		if err != nil || q.Limits.EnforcesTokens {
			return err == nil, err
		}
		q.Outcome = respond.Outcome{} // that of a limit that counts no tokens
	}
	if !q.HasVerdict {
		return false, nil
	}
	f := q.Facts
	f.Method = http.MethodPost
	if !s.Policy.Rules.CountsTokens(&f) {
		return false, nil
	}
	if q.failure != nil {
		return !q.Verdict.Exempt, nil
	}
	v := &policy.Verdict{}
	err := s.Policy.Rules.Evaluate(background, s.Timeout, q.Key, q.User, &f, v)
	tokens, _, _ := unitsOf(v.Terms)
	return err != nil || v.Refused() || tokens, nil
}

// removeOffers removes from a request the headers with another method, unless it is a POST, and an offer to
// upgrade to h2c alone.
func removeOffers(r *http.Request) {
	h := r.Header
	if r.Method != http.MethodPost {
		for name := range h {
			if policy.IsMethodHeader(name) {
				delete(h, name)
			}
		}
	}
	for _, protocol := range strings.Split(strings.Join(h["Upgrade"], ","), ",") {
		if protocol = strings.TrimSpace(protocol); protocol != "" && !strings.EqualFold(protocol, "h2c") {
			return
		}
	}
	delete(h, "Upgrade")
	delete(h, "Http2-Settings")
	Unlist(h, isOffer)
}

// isOffer reports whether Connection lists a header because of an offer to upgrade to h2c.
func isOffer(name string) bool {
	return strings.EqualFold(name, "Upgrade") || strings.EqualFold(name, "HTTP2-Settings")
}

// Unlist removes names from Connection. Proxies do not forward the headers that Connection lists.
func Unlist(h http.Header, removes func(name string) bool) {
	var others []string
	for _, name := range strings.Split(strings.Join(h["Connection"], ","), ",") {
		if name = strings.TrimSpace(name); name != "" && !removes(name) {
			others = append(others, name)
		}
	}
	if others == nil {
		delete(h, "Connection")
		return
	}
	h["Connection"] = []string{strings.Join(others, ", ")}
}
