package respond

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
)

// SetContent sets the Content-Type and the Content-Length of a refusal in h, and returns its body.
func (o *Outcome) SetContent(h http.Header) string {
	body := o.Body()
	h["Content-Type"] = []string{"application/json"}
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	return body
}

// Body returns the JSON of a refusal: {"error":"Too many requests","retryAfter":N}, without retryAfter if the
// request can never pass. The value of error is the result of Text.
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

// Text returns Message, or a text for the reason of the refusal if Message is "".
func (o *Outcome) Text() string {
	if o.Message != "" {
		return o.Message
	}
	if text := reasonTexts[o.Reason]; text != "" {
		return text
	}
	if o.Err != nil {
		return "Service unavailable"
	}
	return tooMany
}

const tooMany = "Too many requests"

var reasonTexts = map[policy.Reason]string{
	policy.UnknownKey: "Unknown API key", policy.KeyExpired: "Expired API key",
	policy.KeyRevoked: "Revoked API key", policy.Banned: "Banned", policy.Blocked: "Forbidden",
	policy.AmbiguousPath: "Ambiguous path", policy.NoKey: "Unauthorized",
	policy.Upgrade: "No upgrade possible",
}
