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

// Body is the JSON of a refusal: {"error":"Too many requests","retryAfter":N}, without
// retryAfter if the request can never pass. The error is Message if there is one, or says
// why else the request does not pass.
func (o *Outcome) Body() string {
	// JSON of text never fails: bytes that are not UTF-8 are replaced.
	quoted, _ := json.Marshal(o.Text())
	body := `{"error":` + string(quoted)
	if seconds := o.RetrySeconds(); seconds > 0 {
		body += `,"retryAfter":` + strconv.FormatInt(seconds, 10)
	}
	return body + "}"
}

// Text says why the request does not pass.
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
	return "Too many requests"
}

// refusalBody is the body of a refusal by a limit; 0 seconds is never.
func refusalBody(seconds int64) string {
	if seconds > 0 {
		return `{"error":"Too many requests","retryAfter":` + strconv.FormatInt(seconds, 10) + `}`
	}
	return `{"error":"Too many requests"}`
}
