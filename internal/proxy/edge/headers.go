package edge

import (
	"net/http"
	"strconv"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// SetHeaders sets the headers of a request's response: X-RateLimit-Limit,
// X-RateLimit-Remaining and X-RateLimit-Reset (Unix seconds, rounded up). If the request is
// refused and would pass later, SetHeaders also sets Retry-After. Without a decision on a
// limit it sets none of the X-RateLimit headers. If a limit with overage is used beyond its
// quota, SetHeaders sets X-RateLimit-Overage.
func SetHeaders(h http.Header, o *Outcome) {
	if o.Decision != nil {
		SetHeadersIn(h, o, make([]string, ownValues))
		SetOverage(h, o.Overage)
		return
	}
	setRetryAfter(h, o)
}

// setRetryAfter sets the headers of a refusal that do not describe a limit.
func setRetryAfter(h http.Header, o *Outcome) {
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

// SetHeadersIn does what SetHeaders does for an outcome with a decision. values is memory
// for three texts.
func SetHeadersIn(h http.Header, o *Outcome, values []string) {
	d := o.Decision
	// The values share one string and one slice, to save allocations. Each header's
	// slice has no spare capacity, so that Header.Add allocates a new one.
	text := strconv.AppendInt(make([]byte, 0, 64), d.Limit, 10)
	limitEnd := len(text)
	text = strconv.AppendInt(text, d.Remaining, 10)
	remainingEnd := len(text)
	text = strconv.AppendInt(text, d.Reset.Add(time.Second-1).Unix(), 10)
	all := string(text)
	values[0] = all[:limitEnd]
	values[1] = all[limitEnd:remainingEnd]
	values[2] = all[remainingEnd:]
	h["X-Ratelimit-Limit"] = values[0:1:1]
	h["X-Ratelimit-Remaining"] = values[1:2:2]
	h["X-Ratelimit-Reset"] = values[2:3:3]
	if o.Status != 0 {
		setRetryAfter(h, o)
	}
}

// HasLessRemaining reports whether the headers that an earlier handler has set describe a
// limit with less remaining.
func HasLessRemaining(h http.Header, remaining int64) bool {
	values := h["X-Ratelimit-Remaining"]
	if len(values) == 0 {
		return false
	}
	n, err := strconv.ParseInt(values[0], 10, 64)
	return err == nil && n < remaining
}

// Response is what SetAllHeaders works on: the response to a request that was decided.
type Response struct {
	Header   http.Header
	Decision *ratelimit.Decision
	Body     string // set for a refusal, which has status 429; else ""
}

// SetAllHeaders does for many responses what SetHeaders does for one. It also sets the
// body of a refusal and the headers that go with a body. Text that is the same as in the
// response before is used again.
func SetAllHeaders(responses []Response) {
	limit, limitText := int64(-1), ""
	reset, resetText := int64(-1), ""
	retry, retryText, body, length := int64(-1), "", "", ""
	for i := range responses {
		d := responses[i].Decision
		if d.Limit != limit {
			limit = d.Limit
			limitText = strconv.FormatInt(limit, 10)
		}
		if seconds := d.Reset.Add(time.Second - 1).Unix(); seconds != reset {
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
		seconds := retrySeconds(d.RetryAfter)
		if seconds != retry {
			retry = seconds
			retryText = strconv.FormatInt(retry, 10)
			body = refusalBody(retry)
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
