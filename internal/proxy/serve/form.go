package serve

import (
	"net/http"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
)

// setForm sets the form of a refusal that its client understands.
func setForm(q *Request) {
	o := &q.Outcome
	o.RPC = rpcOf(q)
	method := q.HTTP.Method
	if isUpgrade(q.HTTP) { // its limits are those of a POST: see checkHiddenPost
		q.HTTP.Method = http.MethodPost
		q.Facts.Method = http.MethodPost
	}
	o.Object = hasObject(q)
	q.HTTP.Method = method
	o.Anthropic = len(q.HTTP.Header["Anthropic-Version"]) > 0
	if o.RPC != "" || o.Object || o.Unit != "" {
		o.Limit = refusingLimit(q)
	}
}

// rpcOf returns the Content-Type in which the client of a remote call reads a refusal, or "" for other
// requests. It is application/json for a unary call of Connect.
func rpcOf(q *Request) string {
	r := q.HTTP
	isConnect := len(r.Header["Connect-Protocol-Version"]) > 0
	switch {
	case !q.Site.GRPC:
		return ""
	case r.Method == http.MethodGet:
		isConnect = r.URL.RawQuery != "" && r.URL.Query().Get("connect") == "v1"
	case r.Method == http.MethodPost:
		kind, _, _ := strings.Cut(strings.ToLower(r.Header.Get("Content-Type")), ";")
		kind = strings.TrimSpace(kind)
		base, _, _ := strings.Cut(kind, "+")
		if base == "application/grpc" && r.ProtoMajor > 1 || base == "application/connect" ||
			strings.HasPrefix(base, "application/grpc-web") {
			return kind
		}
	}
	if isConnect {
		return "application/json"
	}
	return ""
}

// hasObject reports whether the error in the body of a refusal is an object, which clients of language models
// expect. With settings.ErrorsByRequest it is one if a client of Anthropic's API sent the request, or if a
// limit of tokens matches the request from any sender.
func hasObject(q *Request) bool {
	s := q.Site
	if s.Errors != settings.ErrorsByRequest {
		return s.Errors == settings.ErrorsObject
	}
	if len(q.HTTP.Header["Anthropic-Version"]) > 0 {
		return true
	}
	for _, z := range s.Zones {
		if !z.CostSource.CountsTokens() || z.Mode == option.Off {
			continue
		}
		if z.Match == nil {
			return true
		}
		if matches, err := z.Match(q.HTTP); err == nil && matches {
			return true
		}
	}
	return q.HasVerdict && s.Policy.Rules.CountsTokens(&q.Facts)
}

// refusingLimit returns the name of the limit that refused a request, of a rule as RULE/LIMIT, or "".
func refusingLimit(q *Request) string {
	at := q.Outcome.Hit
	switch {
	case q.Outcome.Decision != nil && at < len(q.Hits):
		if q.Terms[at].Rule != "" {
			return ruleLimit(q.Terms[at])
		}
		return q.Hits[at].Limit.Prefix
	case q.Outcome.Reason == policy.NoQuota:
		return ruleLimit(q.Verdict.Refusing)
	}
	return ""
}
