package traefikplugin

import (
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
)

// forwardedNames are the names of the request headers that forward sets. The first is the shortest.
var forwardedNames = []string{"X-Ratelimit-User", "X-Ratelimit-Tier", "X-Ratelimit-Key-Id",
	"X-Ratelimit-Rule", "X-Ratelimit-Exceeded", "X-Ratelimit-Exceeded-By"}

// forwardedKey marks the context of a request with headers of forward, which are not the client's. It is a
// pointer, because the interpreter does not distinguish types with the same fields.
var forwardedKey = new(string)

// removeForwarded removes the headers of a client that isForwarded reports. It keeps those of forward in an
// earlier middleware.
func removeForwarded(r *http.Request) {
	for name := range r.Header {
		if len(name) >= len(forwardedNames[0]) && strings.EqualFold(name[2:11], "Ratelimit") &&
			isForwarded(name) {
			if r.Context().Value(forwardedKey) != nil {
				return
			}
			delete(r.Header, name)
		}
	}
}

// isForwarded reports whether an upstream could mistake a header for one that forward sets. The name may have
// any spelling, and many upstreams treat underscores as hyphens.
func isForwarded(name string) bool {
	canonical := http.CanonicalHeaderKey(strings.Replace(name, "_", "-", -1))
	for _, forwarded := range forwardedNames {
		if canonical == forwarded {
			return true
		}
	}
	return false
}

// forward sets the headers that describe a request to the upstream: the policy's verdict, and a limit that
// admitted the request beyond its quota. A header without a value is missing, even if forward in an earlier
// middleware has set it.
func forward(h http.Header, q *serve.Request) {
	if h["Connection"] != nil { // or a client could hide the headers from the upstream
		serve.Unlist(h, isForwarded)
	}
	v := &q.Verdict
	values := []string{v.User, v.Tier, "", v.Rule, "", ""} // in the order of forwardedNames
	if v.KeyID != 0 {
		values[2] = strconv.FormatInt(v.KeyID, 10)
	}
	if q.Outcome.ExceededBy > 0 {
		values[4], values[5] = q.Exceeded()
	}
	for i, value := range values {
		if value == "" {
			delete(h, forwardedNames[i])
		} else {
			h[forwardedNames[i]] = []string{headerText(value)}
		}
	}
}

// invalidInHeader matches characters that the value of a header cannot have, such as a space at its start or
// end. It also matches the percent sign, so that different texts have different values.
var invalidInHeader = regexp.MustCompile(`^ | $|[%\x00-\x1f\x7f]`)

// headerText returns text as the value of a header, percent-encoded.
func headerText(text string) string {
	return invalidInHeader.ReplaceAllStringFunc(text, func(c string) string {
		return fmt.Sprintf("%%%02X", c[0])
	})
}
