package respond

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
)

// SetContent sets the headers of a refusal in h that describe its body, and returns its status and its body.
// A call of gRPC gets status 200, no body, and the status of gRPC in headers.
func (o *Outcome) SetContent(h http.Header) (status int, body string) {
	if o.GRPC {
		setGRPC(h, o)
		return http.StatusOK, ""
	}
	body = o.Body()
	h["Content-Type"] = []string{"application/json"}
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	return o.Status, body
}

// grpcStatuses has the statuses of gRPC by the status of a refusal, as
// https://github.com/grpc/grpc/blob/master/doc/http-grpc-status-mapping.md has them, apart from 429: a limit
// is used up, and the service is not unavailable, for which clients would ask again at once.
var grpcStatuses = map[int]int{
	http.StatusBadRequest: 13, http.StatusUnauthorized: 16, http.StatusForbidden: 7, http.StatusNotFound: 12,
	http.StatusTooManyRequests: 8, http.StatusBadGateway: 14, http.StatusServiceUnavailable: 14,
	http.StatusGatewayTimeout: 14,
}

// setGRPC sets the headers of a response without a body to a call of gRPC. A pushback below 0 forbids a
// retry.
func setGRPC(h http.Header, o *Outcome) {
	status, ok := grpcStatuses[o.Status]
	if !ok {
		status = 2 // unknown
	}
	pushback := "-1"
	if seconds := o.RetrySeconds(); seconds > 0 && seconds <= longWait {
		pushback = strconv.FormatInt(seconds*1000, 10)
	}
	h["Content-Type"] = []string{"application/grpc"}
	h["Grpc-Status"] = []string{strconv.Itoa(status)}
	h["Grpc-Message"] = []string{percentEncoded(o.explanation())}
	h["Grpc-Retry-Pushback-Ms"] = []string{pushback}
}

// percentEncoded percent-encodes all bytes of a text but printable ASCII, and percent signs.
func percentEncoded(text string) string {
	const digits = "0123456789ABCDEF"
	encoded := make([]byte, 0, len(text))
	for i := 0; i < len(text); i++ {
		if c := text[i]; c < ' ' || c >= 0x7f || c == '%' {
			encoded = append(encoded, '%', digits[c>>4], digits[c&15])
		} else {
			encoded = append(encoded, c)
		}
	}
	return string(encoded)
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

// errorKind names the error of a status in the terms of the APIs of language models.
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
	kind.Message = o.explanation()
	object, _ := json.Marshal(kind) // never fails: bytes that are not UTF-8 are replaced
	return `{"type":"error","error":` + string(object) + retryMember(o.RetrySeconds()) + "}"
}

// explanation returns the text of a refusal with the limit that refused, and when the request would pass.
func (o *Outcome) explanation() string {
	text := o.Text()
	if o.Limit != "" {
		text += ": limit " + o.Limit
	}
	if seconds := o.RetrySeconds(); seconds > 0 {
		text += ", retry in " + strconv.FormatInt(seconds, 10) + " s"
	} else if o.Limit != "" {
		text += ", which never admits this request"
	}
	return text
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
	policy.NoPrice: "The model has no price, or the request names none",
	policy.Upgrade: "No upgrade possible", policy.AmbiguousBody: "Ambiguous body",
	policy.Background: "No answer in the background possible", policy.SlowBody: "Incomplete body",
	policy.LongBody: "Body too long", policy.ManyBodies: "Service unavailable",
}
