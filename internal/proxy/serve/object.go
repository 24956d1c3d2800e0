package serve

import (
	"net/http"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// setForm sets the form of a refusal that its client understands.
func setForm(q *Request) {
	o := &q.Outcome
	o.GRPC = q.Site.GRPC && isGRPC(q.HTTP)
	o.Object = hasObject(q)
	if o.GRPC || o.Object {
		o.Limit = refusingLimit(q)
	}
}

// isGRPC reports whether a request is a call of gRPC.
func isGRPC(r *http.Request) bool {
	if r.ProtoMajor != 2 || r.Method != http.MethodPost {
		return false
	}
	rest := strings.TrimPrefix(r.Header.Get("Content-Type"), "application/grpc")
	return r.Header.Get("Te") == "trailers" && len(rest) < len(r.Header.Get("Content-Type")) &&
		(rest == "" || rest[0] == '+' || rest[0] == ';')
}

// hasObject reports whether the body of a refusal has an object as its error, which clients of language
// models expect. With settings.ErrorsByRequest it has, if a client of Anthropic's API sent the request, or if
// a limit of tokens is for requests of its kind, whoever sends them.
func hasObject(q *Request) bool {
	s := q.Site
	if s.Errors != settings.ErrorsByRequest {
		return s.Errors == settings.ErrorsObject
	}
	if len(q.HTTP.Header["Anthropic-Version"]) > 0 {
		return true
	}
	for _, z := range s.Zones {
		if !z.countsTokens() || z.Mode == settings.Off {
			continue
		}
		if z.Match == nil {
			return true
		}
		if matches, err := z.Match(q.HTTP); err == nil && matches {
			return true
		}
	}
	return q.Asked && s.Policy.Live.CountsTokens(&q.Facts)
}

// refusingLimit returns the name of the limit or the rule that refused a request, or "".
func refusingLimit(q *Request) string {
	at := q.Outcome.Hit
	if q.Outcome.Decision == nil || at >= len(q.Hits) {
		if q.Outcome.Reason == policy.NoQuota {
			return ruleLimit(q.Verdict.Mark)
		}
		return ""
	}
	if m := MarkOf(q, at); m != nil {
		return ruleLimit(m)
	}
	return q.Hits[at].Limit.Prefix
}

// ruleLimit returns the name of a limit of a rule: RULE/LIMIT.
func ruleLimit(m *policy.Mark) string {
	if m.Limit == "" {
		return m.Rule
	}
	return m.Rule + "/" + m.Limit
}

// isMixed reports whether one of the limits of a request counts tokens, or is not described by fields.
func isMixed(q *Request) bool {
	if q.Limits != nil && q.Limits.Mixed {
		return true
	}
	if !q.Asked || q.Verdict.Simple {
		return false
	}
	for _, m := range q.Verdict.Marks {
		if m.Hidden || m.CountsTokens() {
			return true
		}
	}
	return false
}

// kindOf reports whether the limit of a hit counts tokens, and whether no field describes it.
func kindOf(q *Request, i int) (tokens, hidden bool) {
	if m := MarkOf(q, i); m != nil {
		return m.CountsTokens(), m.Hidden
	}
	if zone := zoneAt(q, i); zone >= 0 {
		z := q.Limits.Zones[zone]
		return z.countsTokens(), z.Hidden
	}
	return false, false
}

// setShown sets the decisions that the fields describe: the tightest one on limits of requests, and the
// tightest one on limits of tokens. A refusal by a limit without fields has none, because other limits do not
// explain it.
func setShown(out *respond.Outcome, q *Request) {
	out.Requests = nil
	out.Hidden = make([]bool, len(q.Hits))
	var hits [2][]ratelimit.Hit // of requests, and of tokens
	var decisions [2][]ratelimit.Decision
	var indexes [2][]int
	for i := range q.Hits {
		tokens, hidden := kindOf(q, i)
		out.Hidden[i] = hidden
		if hidden || q.Decisions[i].Source == ratelimit.Undecided {
			continue
		}
		kind := 0
		if tokens {
			kind = 1
		}
		hits[kind] = append(hits[kind], q.Hits[i])
		decisions[kind] = append(decisions[kind], q.Decisions[i])
		indexes[kind] = append(indexes[kind], i)
	}
	if out.Hidden[out.Hit] && !out.Decision.Allowed {
		return
	}
	if at := respond.Tightest(hits[0], decisions[0]); at >= 0 {
		out.Requests = &q.Decisions[indexes[0][at]]
	}
	if at := respond.Tightest(hits[1], decisions[1]); at >= 0 {
		out.Tokens = &q.Decisions[indexes[1][at]]
	}
}
