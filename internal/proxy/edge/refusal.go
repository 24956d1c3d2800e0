package edge

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Refusal is what Refuse answers, and to which request.
type Refusal struct {
	Request   http.Header // of the client
	Hits      []ratelimit.Hit
	Decisions []ratelimit.Decision
	Policy    *policy.Verdict // nil without a policy
}

// Refuse sends the response to a request that does not pass, after SetHeaders.
func (o *Outcome) Refuse(w http.ResponseWriter, r *Refusal) {
	body := o.Content(w.Header(), r)
	w.WriteHeader(o.Status)
	_, _ = w.Write([]byte(body)) // an error means that the client has closed the connection
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
