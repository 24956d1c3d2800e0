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
// request can never pass. The value of error is the result of Text. With Object, error is an object with a
// message, a type, a code and a param, and "type":"error" stands beside it, as the SDKs of OpenAI and
// Anthropic read it.
func (o *Outcome) Body() string {
	if o.Object {
		return objectBody(o)
	}
	return refusalBody(o.Text(), o.RetrySeconds())
}

// errorKind is how the APIs of language models name the error of a status.
type errorKind struct {
	Message string `json:"message"`
	Type    string `json:"type"`
	Code    string `json:"code"`
	Param   *int   `json:"param"` // always null
}

var errorKinds = map[int]errorKind{
	http.StatusBadRequest:         {Type: "invalid_request_error", Code: "invalid_request"},
	http.StatusUnauthorized:       {Type: "authentication_error", Code: "invalid_api_key"},
	http.StatusPaymentRequired:    {Type: "billing_error", Code: "insufficient_quota"},
	http.StatusForbidden:          {Type: "permission_error", Code: "forbidden"},
	http.StatusTooManyRequests:    {Type: "rate_limit_error", Code: "rate_limit_exceeded"},
	http.StatusServiceUnavailable: {Type: "api_error", Code: "service_unavailable"},
}

// objectBody returns the JSON of a refusal with an object.
func objectBody(o *Outcome) string {
	kind, ok := errorKinds[o.Status]
	switch {
	case ok:
	case o.Status < http.StatusInternalServerError:
		kind = errorKinds[http.StatusBadRequest]
	default:
		kind = errorKinds[http.StatusServiceUnavailable]
	}
	seconds := o.RetrySeconds()
	kind.Message = o.Text()
	if o.Limit != "" {
		kind.Message += ": limit " + o.Limit
	}
	if seconds > 0 {
		kind.Message += ", retry in " + strconv.FormatInt(seconds, 10) + " s"
	} else if o.Limit != "" {
		kind.Message += ", which never admits this request"
	}
	object, _ := json.Marshal(kind) // never fails: bytes that are not UTF-8 are replaced
	return `{"type":"error","error":` + string(object) + retryMember(seconds) + "}"
}

// refusalBody returns the JSON of a refusal, without retryAfter if seconds is 0.
func refusalBody(text string, seconds int64) string {
	// JSON of text never fails: bytes that are not UTF-8 are replaced.
	quoted, _ := json.Marshal(text)
	return `{"error":` + string(quoted) + retryMember(seconds) + "}"
}

// retryMember returns the member retryAfter of a body, or "" if seconds is 0.
func retryMember(seconds int64) string {
	if seconds == 0 {
		return ""
	}
	return `,"retryAfter":` + strconv.FormatInt(seconds, 10)
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
