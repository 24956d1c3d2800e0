package edge

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

const (
	plainType   = "application/json"
	problemType = "application/problem+json" // RFC 9457

	// problemTypes begins the types of draft-ietf-httpapi-ratelimit-headers-11.
	problemTypes = "https://iana.org/assignments/http-problem-types#"

	// longestAccept is how many bytes of Accept are read. A client can send a million.
	longestAccept = 1000
)

// PrefersProblem reports whether a client prefers application/problem+json to application/json, as Accept has their
// weights (RFC 9110, 12.5.1). Without a preference the answer is plain JSON.
func PrefersProblem(h http.Header) bool {
	values := h["Accept"]
	if len(values) == 0 {
		return false
	}
	accept := values[0]
	if len(values) > 1 {
		accept = strings.Join(values, ",")
	}
	if len(accept) > longestAccept {
		return false
	}
	accept = strings.ToLower(accept)
	if !strings.Contains(accept, "json") {
		return false // all that is accepted has one weight for both
	}
	return weightOf(accept, problemType) > weightOf(accept, plainType)
}

// weightOf is the weight of a media type in Accept, in thousandths: that of the most specific range with the type.
// 0 is not acceptable.
func weightOf(accept, mediaType string) int {
	best := 0
	weight := 0
	for _, part := range strings.Split(accept, ",") {
		parameters := strings.Split(part, ";")
		specific := 0
		switch strings.TrimSpace(parameters[0]) {
		case mediaType:
			specific = 3
		case "application/*":
			specific = 2
		case "*/*":
			specific = 1
		}
		w := 1000
		for _, parameter := range parameters[1:] {
			parameter = strings.TrimSpace(parameter)
			if strings.HasPrefix(parameter, "q=") {
				w = parseWeight(parameter[2:])
			}
		}
		if specific == 0 || w < 0 || specific < best || specific == best && w < weight {
			continue
		}
		best = specific
		weight = w
	}
	return weight
}

// parseWeight reads a weight such as 0.25, in thousandths. It is below 0 if it has another form.
func parseWeight(text string) int {
	if len(text) == 0 || len(text) > 5 || text[0] != '0' && text[0] != '1' || len(text) > 1 && text[1] != '.' {
		return -1
	}
	digits := text[:1]
	if len(text) > 2 {
		digits += text[2:]
	}
	n, err := strconv.Atoi((digits + "000")[:4])
	if err != nil || n > 1000 {
		return -1
	}
	return n
}

// Content returns the body of the refusal of a request, and sets the headers that describe it.
func (q *Request) Content(h http.Header) string {
	if q.Outcome.Status != http.StatusTooManyRequests { // which no cache stores
		h["Vary"] = append(h["Vary"][:len(h["Vary"]):len(h["Vary"])], "Accept")
	}
	contentType := plainType
	body := ""
	if PrefersProblem(q.HTTP.Header) {
		contentType = problemType
		body = q.problem()
	} else {
		body = q.Outcome.Body()
	}
	h["Content-Type"] = []string{contentType}
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	return body
}

// problem is the document of RFC 9457 about a refusal. The names of limits are those in RateLimit-Policy.
func (q *Request) problem() string {
	o := &q.Outcome
	document := struct {
		Type   string    `json:"type,omitempty"` // without it, the title is that of the status
		Title  string    `json:"title"`
		Status int       `json:"status"`
		Detail string    `json:"detail"`
		Names  *[]string `json:"violated-policies,omitempty"`
	}{Title: http.StatusText(o.Status), Status: o.Status, Detail: o.Text()}
	names := []string{}
	switch {
	case o.Err != nil:
		document.Type = problemTypes + "temporary-reduced-capacity"
		document.Title = "Temporary Reduced Capacity"
		document.Names = &names
	case o.Decision != nil:
		for i := range q.Decisions {
			d := &q.Decisions[i]
			if !d.Allowed && !q.Hits[i].Apart && d.Source != ratelimit.Undecided {
				names = append(names, fieldName(q.Hits[i].Limit.Prefix))
			}
		}
		document.Names = &names
	case o.Reason == policy.NoQuota && q.Verdict.Mark != nil:
		names = append(names, fieldName(RulePrefix+q.Verdict.Mark.Counter+"/"+q.Verdict.Mark.Limit))
		document.Names = &names
	}
	if document.Type == "" && document.Names != nil {
		document.Type = problemTypes + "quota-exceeded"
		document.Title = "Quota Exceeded"
	}
	text, _ := json.Marshal(&document) // text never fails
	return string(text)
}
