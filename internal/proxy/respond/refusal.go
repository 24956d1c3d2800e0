package respond

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// SetContent sets the headers of a refusal in h that describe its body, and returns the status and the body.
// A call of gRPC or gRPC-Web gets status 200, no body, and the status of gRPC in headers. A stream of Connect
// gets status 200 and a body that ends the stream with an error.
func (o *Outcome) SetContent(h http.Header) (int, string) {
	status, body := o.Status, ""
	kind := o.RPC
	code, ok := rpcCodes[status]
	if !ok {
		code.number = 2
		code.name = "unknown"
	}
	switch {
	case kind == "":
		kind = "application/json"
		body = o.Body()
	case strings.HasPrefix(kind, "application/grpc"):
		status = http.StatusOK
		setGRPC(h, o, code.number)
	default:
		message, _ := json.Marshal(o.explanation())
		body = `{"code":"` + code.name + `","message":` + string(message) + "}"
		if kind != "application/json" {
			status = http.StatusOK
			body = `{"error":` + body + "}"
			n := len(body) // after the flag of the last message
			body = string([]byte{2, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}) + body
		}
	}
	h["Content-Type"] = []string{kind}
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	return status, body
}

// rpcCode is the status of a remote call: a number in gRPC, and a name in Connect.
type rpcCode struct {
	number int
	name   string
}

// rpcCodes has the codes of remote calls by the status of a refusal. Clients derive other codes for 400 and
// 429 from the status of a response: internal, and unavailable, for which they would ask again at once.
var rpcCodes = map[int]rpcCode{
	http.StatusBadRequest: {3, "invalid_argument"}, http.StatusUnauthorized: {16, "unauthenticated"},
	http.StatusPaymentRequired: {8, "resource_exhausted"}, http.StatusForbidden: {7, "permission_denied"},
	http.StatusNotFound: {12, "unimplemented"}, http.StatusRequestEntityTooLarge: {8, "resource_exhausted"},
	http.StatusTooManyRequests: {8, "resource_exhausted"}, http.StatusBadGateway: {14, "unavailable"},
	http.StatusServiceUnavailable: {14, "unavailable"}, http.StatusGatewayTimeout: {14, "unavailable"},
}

// setGRPC sets the headers with the status of a call of gRPC or gRPC-Web. A pushback below 0 forbids a retry.
func setGRPC(h http.Header, o *Outcome, status int) {
	pushback := "-1"
	if seconds := o.RetrySeconds(); seconds > 0 && seconds <= longWait {
		pushback = strconv.FormatInt(seconds*1000, 10)
	}
	h["Grpc-Status"] = []string{strconv.Itoa(status)}
	h["Grpc-Message"] = []string{percentEncoded(o.explanation())}
	h["Grpc-Retry-Pushback-Ms"] = []string{pushback}
	if strings.HasPrefix(o.RPC, "application/grpc-web") { // the script of a page reads them
		h.Add("Access-Control-Expose-Headers", "Grpc-Status, Grpc-Message, Grpc-Retry-Pushback-Ms")
	}
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
	text := o.Text()
	if o.usedUp() {
		text = o.explanation()
	}
	return refusalBody(text, o.RetrySeconds())
}

// usedUp reports whether a limit with a unit is used up for longer than clients should wait. What is only
// held refuses for a second.
func (o *Outcome) usedUp() bool {
	d := o.Decision
	return d != nil && !d.Allowed && d.RetryAfter != ratelimit.Never && d.RetryAfter > longWait*time.Second &&
		o.Unit != "" && o.Unit != option.Requests
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
	if o.usedUp() {
		kind.Code = errorKinds[http.StatusPaymentRequired].Code
		if !o.Anthropic {
			kind.Type = kind.Code
		}
	}
	kind.Message = o.explanation()
	object, _ := json.Marshal(kind) // never fails: bytes that are not UTF-8 are replaced
	return `{"type":"error","error":` + string(object) + retryMember(o.RetrySeconds()) + "}"
}

// explanation returns the text of a refusal with the limit that refused, and when the request would pass.
func (o *Outcome) explanation() string {
	text := o.Text()
	if o.usedUp() {
		// Rounded up, but for the seconds by which a clock may differ from the server's.
		return text + ": " + o.Limit + " opens on " +
			o.Decision.Reset.Add(55*time.Second).Truncate(time.Minute).UTC().Format("2006-01-02 15:04 MST")
	}
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
	if o.usedUp() {
		return "Budget used up"
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
	policy.BatchAPI:     "No batch possible: a limit cannot count its answers",
	policy.BinaryStream: "No binary event stream possible: a limit cannot count it",
	policy.Background:   "No answer in the background possible", policy.SlowBody: "Incomplete body",
	policy.LongBody: "Body too long", policy.ManyBodies: "Service unavailable",
	policy.GoneBody: "An earlier attempt has read the body",
}
