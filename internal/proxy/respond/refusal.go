package respond

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
)

// Content returns the body of a refusal, and sets the headers that describe it.
func (o *Outcome) Content(h http.Header) string {
	body := o.Body()
	h["Content-Type"] = []string{"application/json"}
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	return body
}

// Body returns the JSON of a refusal: {"error":"Too many requests","retryAfter":N}, without retryAfter if the
// request can never pass. The error is Text.
func (o *Outcome) Body() string { return refusalBody(o.Text(), o.RetrySeconds()) }

// refusalBody returns the JSON of a refusal; 0 seconds is never.
func refusalBody(text string, seconds int64) string {
	// JSON of text never fails: bytes that are not UTF-8 are replaced.
	quoted, _ := json.Marshal(text)
	body := `{"error":` + string(quoted)
	if seconds > 0 {
		body += `,"retryAfter":` + strconv.FormatInt(seconds, 10)
	}
	return body + "}"
}

// Text returns Message, or without one says why the request does not pass.
func (o *Outcome) Text() string {
	if o.Message != "" {
		return o.Message
	}
	switch o.Reason {
	case policy.UnknownKey:
		return "Unknown API key"
	case policy.KeyExpired:
		return "Expired API key"
	case policy.KeyRevoked:
		return "Revoked API key"
	case policy.Banned:
		return "Banned"
	case policy.Blocked:
		return "Forbidden"
	case policy.AmbiguousPath:
		return "Ambiguous path"
	}
	if o.Err != nil {
		return "Service unavailable"
	}
	return tooMany
}

// tooMany is the text of a refusal by a limit.
const tooMany = "Too many requests"
