package respond

import (
	"net/http"
	"strconv"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// OwnHeaders holds the values that SetHeaders has set, in the order limit, remaining, reset. The reset is ""
// if it was not set. OwnHeaders is nil if none was set.
type OwnHeaders []string

// SetFields sets the headers that f selects, and returns the X-RateLimit headers among them, as SetHeaders
// does. o is the outcome of hits and decisions. Without a salt, RateLimit and RateLimit-Policy have no
// parameter pk. OwnFieldsIn returns both of these.
func SetFields(
	h http.Header, f settings.Fields, salt *Salt, o *Outcome, hits []ratelimit.Hit,
	decisions []ratelimit.Decision,
) OwnHeaders {
	var own OwnHeaders
	if f.X {
		own = SetHeaders(h, o)
	} else if o.Status != 0 {
		setRefusalHeaders(h, o)
	}
	if f.IETF && o.Decision != nil {
		policies, limits := fieldsOf(o, hits, decisions, salt.text())
		addMembers(h, policyField, policies)
		addMembers(h, limitField, limits)
	}
	return own
}

// SetHeaders sets the headers of a response: X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset
// (Unix seconds, rounded up; left out if the request can never pass). Without a decision on a limit it sets
// none of these, and returns nil. If the request is refused and would pass later, SetHeaders sets
// Retry-After. If a limit with overage is used beyond its quota, it sets X-RateLimit-Overage.
func SetHeaders(h http.Header, o *Outcome) OwnHeaders {
	var own []string
	d := o.Shown
	if d == nil {
		d = o.Decision
	}
	if d != nil {
		// The values share one string and one slice, to save allocations. Each header's slice has no spare
		// capacity, so that Header.Add allocates a new one.
		buf := strconv.AppendInt(make([]byte, 0, 64), d.Quota, 10)
		limitEnd := len(buf)
		buf = strconv.AppendInt(buf, d.Remaining, 10)
		remainingEnd := len(buf)
		if !d.Reset.IsZero() {
			buf = strconv.AppendInt(buf, localReset(d, o.Ahead).Add(time.Second-1).Unix(), 10)
		}
		text := string(buf)
		own = []string{text[:limitEnd], text[limitEnd:remainingEnd], text[remainingEnd:]}
		h["X-Ratelimit-Limit"] = own[0:1:1]
		h["X-Ratelimit-Remaining"] = own[1:2:2]
		h["X-Ratelimit-Reset"] = own[2:3:3]
		if d.Reset.IsZero() {
			delete(h, "X-Ratelimit-Reset")
		}
	}
	if o.Overage > 0 {
		SetOverage(h, o.Overage)
	}
	if o.Status != 0 {
		setRefusalHeaders(h, o)
	}
	return own
}

// setRefusalHeaders sets the headers of a refusal that do not describe a limit.
func setRefusalHeaders(h http.Header, o *Outcome) {
	if seconds := o.RetrySeconds(); seconds > 0 {
		h["Retry-After"] = []string{strconv.FormatInt(seconds, 10)}
	}
	if o.Status == http.StatusUnauthorized {
		h["Www-Authenticate"] = []string{"Bearer error=\"invalid_token\""}
	}
}

// SetOverage sets X-RateLimit-Overage if there is an overage.
func SetOverage(h http.Header, overage int64) {
	if overage > 0 {
		h["X-Ratelimit-Overage"] = []string{strconv.FormatInt(overage, 10)}
	}
}

// HasLessRemaining reports whether h already describes a limit with less remaining. If h has several values,
// the last one counts.
func HasLessRemaining(h http.Header, remaining int64) bool {
	values := h["X-Ratelimit-Remaining"]
	if len(values) == 0 {
		return false
	}
	n, err := strconv.ParseInt(values[len(values)-1], 10, 64)
	return err == nil && n < remaining
}

// Response is the response to a decided request, for SetAllHeaders.
type Response struct {
	Header   http.Header
	Decision *ratelimit.Decision
	Body     string // the body of a refusal, which has status 429; else ""
}

// SetAllHeaders is like SetHeaders and Outcome.Content, but for many responses in one loop, because an
// interpreted call takes long. ahead is Outcome.Ahead. SetAllHeaders reuses a text if the next response has
// the same. Without SetAllHeaders, an exact request in Traefik takes 1.1 times the processor time, and 510
// allocations instead of 430, measured in integration by
//
//	go test -run xxx -bench 'Interpreted$/Postgres$' -benchtime 20000x .
func SetAllHeaders(responses []Response, ahead int64) {
	limit, limitText := int64(-1), ""
	reset, resetText := int64(-1), ""
	retry, retryText, body, length := int64(-1), "", "", ""
	for i := range responses {
		d := responses[i].Decision
		if d.Quota != limit {
			limit = d.Quota
			limitText = strconv.FormatInt(limit, 10)
		}
		seconds := d.Reset.Add(time.Second - 1).Unix()
		if d.Source != ratelimit.FromMemory {
			seconds -= ahead // as localReset
		}
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
			retryText = strconv.FormatInt(retry, 10)
			body = refusalBody(tooMany, retry)
			length = strconv.Itoa(len(body))
		}
		if seconds > 0 {
			h["Retry-After"] = []string{retryText}
		}
		h["Content-Type"] = []string{"application/json"}
		h["Content-Length"] = []string{length}
		responses[i].Body = body
	}
}
