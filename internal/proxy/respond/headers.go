package respond

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// SetFields sets the headers of a response that f selects: the X-RateLimit headers, and the fields of the
// IETF. On a refusal it also sets Retry-After, X-Should-Retry and Cache-Control. o is the outcome of hits and
// decisions. Without a salt, RateLimit and RateLimit-Policy have no parameter pk.
func SetFields(
	h http.Header, f settings.Fields, salt *Salt, o *Outcome, hits []ratelimit.Hit,
	decisions []ratelimit.Decision,
) {
	if f.X {
		SetXHeaders([]http.Header{h}, []*Outcome{o})
	}
	if f.IETF && o.Decision != nil {
		policies, limits := fieldsOf(o, hits, decisions, salt.text())
		addMembers(h, policyField, policies)
		addMembers(h, limitField, limits)
	}
	if o.Status == 0 {
		return
	}
	seconds := o.RetrySeconds()
	if seconds > 0 {
		h["Retry-After"] = []string{retryText(seconds)}
	}
	if seconds > longWait || seconds == 0 && o.Err == nil {
		h["X-Should-Retry"] = []string{"false"}
	}
	h["Cache-Control"] = []string{"no-store"}
	if o.Status == http.StatusUpgradeRequired && o.Reason == policy.Upgrade {
		h["Upgrade"] = []string{"HTTP/1.1"}
		h["Connection"] = []string{"Upgrade"}
	}
	if o.Status == http.StatusUnauthorized {
		h["Www-Authenticate"] = []string{"Bearer error=\"invalid_token\""}
	}
}

const (
	// maxRetryAfter is the largest Retry-After in seconds. Some clients wait with a timer of 32 bits of
	// milliseconds, which a longer time lets fire at once. The body of a refusal has the true time.
	maxRetryAfter = 1 << 31 / 1000

	// longWait is the longest wait in seconds after which a client should retry by itself. X-Should-Retry
	// forbids a retry after a longer wait, and of a request that can never pass. The SDKs of OpenAI and
	// Anthropic obey it, and would otherwise sleep or retry at once.
	longWait = 60
)

// retryText returns the value of Retry-After.
func retryText(seconds int64) string {
	if seconds > maxRetryAfter {
		seconds = maxRetryAfter
	}
	return strconv.FormatInt(seconds, 10)
}

// SetXHeaders sets in each response X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset if a limit
// of requests applies. Reset is in Unix seconds, rounded up, and left out if the request can never pass. If
// the request passes, and an earlier limit has set these headers with less remaining, SetXHeaders leaves them
// unchanged. It sets the headers of limits of tokens in the same way, with a Reset that is a duration such
// as 6m0s, rounded up to seconds, as in the API of OpenAI. If a limit with overage is used beyond its quota,
// SetXHeaders sets X-RateLimit-Overage.
func SetXHeaders(headers []http.Header, outcomes []*Outcome) {
	for k, h := range headers {
		o := outcomes[k]
		if o.Overage > 0 {
			h["X-Ratelimit-Overage"] = []string{o.OverageUnit.Amount(o.Overage)}
		}
		if d := o.Tokens; d != nil {
			earlier := h["X-Ratelimit-Remaining-Tokens"]
			if len(earlier) == 0 || !hasLess(earlier, o, d) {
				h["X-Ratelimit-Limit-Tokens"] = []string{strconv.FormatInt(d.Quota, 10)}
				h["X-Ratelimit-Remaining-Tokens"] = []string{strconv.FormatInt(d.Remaining, 10)}
				delete(h, "X-Ratelimit-Reset-Tokens")
				if !d.Reset.IsZero() {
					rest := time.Until(d.Reset)
					if rest < 0 {
						rest = 0
					}
					seconds := (rest + time.Second - 1).Truncate(time.Second)
					h["X-Ratelimit-Reset-Tokens"] = []string{seconds.String()}
				}
			}
		}
		d := o.Requests
		if d == nil {
			continue
		}
		if earlier := h["X-Ratelimit-Remaining"]; len(earlier) > 0 && hasLess(earlier, o, d) {
			continue
		}
		// The values share one string and one slice, to save allocations. Each header's slice has no spare
		// capacity, so that Header.Add allocates a new one.
		buf := strconv.AppendInt(make([]byte, 0, 64), d.Quota, 10)
		limitEnd := len(buf)
		buf = strconv.AppendInt(buf, d.Remaining, 10)
		remainingEnd := len(buf)
		if !d.Reset.IsZero() {
			buf = strconv.AppendInt(buf, d.Reset.Add(time.Second-1).Unix(), 10)
		}
		text := string(buf)
		values := []string{text[:limitEnd], text[limitEnd:remainingEnd], text[remainingEnd:]}
		h["X-Ratelimit-Limit"] = values[0:1:1]
		h["X-Ratelimit-Remaining"] = values[1:2:2]
		h["X-Ratelimit-Reset"] = values[2:3:3]
		if d.Reset.IsZero() {
			delete(h, "X-Ratelimit-Reset")
		}
	}
}

// hasLess reports whether an earlier limit has set a header with less remaining, and the request passes.
func hasLess(earlier []string, o *Outcome, d *ratelimit.Decision) bool {
	n, err := strconv.ParseInt(earlier[len(earlier)-1], 10, 64)
	return o.Status == 0 && err == nil && n < d.Remaining
}

// Response is the response to a decided request, for SetResponses.
type Response struct {
	Header   http.Header
	Decision *ratelimit.Decision
	Body     string // the body of a refusal, which has status 429; else ""
}

// SetResponses is like SetFields and Outcome.SetContent, but for many responses in one loop, because an
// interpreted call takes long. It replaces the headers of an earlier limit, even if that limit has less
// remaining. SetResponses reuses the text of a value if the next response has the same value. Without it, an
// exact request in Traefik takes 1.1 times the processor time.
func SetResponses(responses []Response) {
	limit, limitText := int64(-1), ""
	reset, resetText := int64(-1), ""
	retry, wait, body, length := int64(-1), "", "", ""
	for i := range responses {
		d := responses[i].Decision
		if d.Quota != limit {
			limit = d.Quota
			limitText = strconv.FormatInt(limit, 10)
		}
		seconds := d.Reset.Add(time.Second - 1).Unix()
		if seconds != reset {
			reset = seconds
			resetText = strconv.FormatInt(reset, 10)
		}
		values := []string{limitText, strconv.FormatInt(d.Remaining, 10), resetText}
		h := responses[i].Header
		h["X-Ratelimit-Limit"] = values[0:1:1]
		h["X-Ratelimit-Remaining"] = values[1:2:2]
		h["X-Ratelimit-Reset"] = values[2:3:3]
		if d.Allowed {
			continue
		}
		if d.Reset.IsZero() {
			delete(h, "X-Ratelimit-Reset")
		}
		seconds = retrySeconds(d.RetryAfter)
		if seconds != retry {
			retry = seconds
			wait = retryText(retry)
			body = refusalBody(tooMany, retry)
			length = strconv.Itoa(len(body))
		}
		if seconds > 0 {
			h["Retry-After"] = []string{wait}
		}
		if seconds > longWait || seconds == 0 {
			h["X-Should-Retry"] = []string{"false"}
		}
		h["Cache-Control"] = []string{"no-store"}
		h["Content-Type"] = []string{"application/json"}
		h["Content-Length"] = []string{length}
		responses[i].Body = body
	}
}

// headerNames are the canonical names of the headers that describe limits, in the order of Headers.
var headerNames = []string{"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset", policyField,
	limitField, "X-Ratelimit-Overage", "X-Ratelimit-Limit-Tokens", "X-Ratelimit-Remaining-Tokens",
	"X-Ratelimit-Reset-Tokens"}

// xNames is the number of names at the start of headerNames that SetFields sets together. Of these, Reset may
// be missing.
const xNames = 3

// Headers holds the values of a response's headers that describe limits, in the order of headerNames. "" is a
// missing header. Nil has no header.
type Headers []string

// HeaderCount is the number of headerNames.
const HeaderCount = 9

// HeadersIn returns the headers that SetFields has set in h. It uses the memory of own, which has HeaderCount
// elements.
func HeadersIn(h http.Header, own Headers) Headers {
	found := false
	for i, name := range headerNames {
		own[i] = ""
		if values := h[name]; len(values) > 0 {
			own[i] = values[0]
			found = true
		}
	}
	if !found {
		return nil
	}
	return own
}

// WithoutX returns own without X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset.
func WithoutX(own Headers) Headers {
	if own == nil {
		return nil
	}
	return append(make(Headers, xNames), own[xNames:]...)
}

// Restore replaces the headers of an upstream by own, and reports whether one differed. Callers call it just
// before they send the headers. It keeps headers of kinds that own does not have, and the upstream's
// Retry-After, since a limit sets none on a request that passes.
func Restore(h http.Header, own Headers) bool {
	differed := false
	for i, value := range own {
		values := h[headerNames[i]]
		isField := headerNames[i] == policyField || headerNames[i] == limitField
		switch {
		case value == "" && (i >= xNames || own[0] == ""):
			continue
		case len(values) < 2 && strings.Join(values, "") == value:
			continue
		case isField && len(values) > 0 && strings.HasPrefix(values[0], value):
			value = values[0] // a later limit in this proxy may have added members
		}
		differed = true
		if value == "" {
			delete(h, headerNames[i])
		} else {
			h[headerNames[i]] = []string{value}
		}
	}
	return differed
}
