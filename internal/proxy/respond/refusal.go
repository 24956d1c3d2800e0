package respond

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
)

// Content returns the body of a refusal, and sets its Content-Type and Content-Length in h.
func (o *Outcome) Content(h http.Header) string {
	body := o.Body()
	h["Content-Type"] = []string{"application/json"}
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	return body
}

// Body returns the JSON of a refusal: {"error":"Too many requests","retryAfter":N}, without retryAfter if the
// request can never pass. The error is Text.
func (o *Outcome) Body() string { return refusalBody(o.Text(), o.RetrySeconds()) }

// refusalBody returns the JSON of a refusal, without retryAfter if seconds is 0.
func refusalBody(text string, seconds int64) string {
	// JSON of text never fails: bytes that are not UTF-8 are replaced.
	quoted, _ := json.Marshal(text)
	body := `{"error":` + string(quoted)
	if seconds > 0 {
		body += `,"retryAfter":` + strconv.FormatInt(seconds, 10)
	}
	return body + "}"
}

// Text returns Message, or without one a text for the reason of the refusal.
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

const tooMany = "Too many requests"
