package traefikplugin

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
)

// Request headers that forward sets.
const (
	userHeader       = "X-Ratelimit-User"
	tierHeader       = "X-Ratelimit-Tier"
	keyHeader        = "X-Ratelimit-Key-Id"
	ruleHeader       = "X-Ratelimit-Rule"
	exceededHeader   = "X-Ratelimit-Exceeded"
	exceededByHeader = "X-Ratelimit-Exceeded-By"
)

// removeForwarded removes headers of a client that isForwarded reports, in any spelling.
func removeForwarded(h http.Header) {
	for name := range h {
		if len(name) >= len(userHeader) && isForwarded(name) {
			delete(h, name)
		}
	}
}

// isForwarded reports whether an upstream could take a header for one that forward sets. Many upstreams treat
// underscores as hyphens.
func isForwarded(name string) bool {
	switch http.CanonicalHeaderKey(strings.Replace(name, "_", "-", -1)) {
	case userHeader, tierHeader, keyHeader, ruleHeader, exceededHeader, exceededByHeader:
		return true
	}
	return false
}

// unlistForwarded removes the names of forward's headers from Connection. A proxy does not pass on headers
// that Connection names, so a client could hide them from the upstream.
func unlistForwarded(h http.Header) {
	var others []string
	for _, value := range h["Connection"] {
		for _, name := range strings.Split(value, ",") {
			if name = strings.TrimSpace(name); name != "" && !isForwarded(name) {
				others = append(others, name)
			}
		}
	}
	if others == nil {
		delete(h, "Connection")
		return
	}
	h["Connection"] = []string{strings.Join(others, ", ")}
}

// forward sets the headers that describe a request to the upstream: the verdict of the policy, and a limit
// that let the request pass beyond its quota. It sets no header without a value.
func forward(h http.Header, q *serve.Request) {
	o := &q.Verdict
	if h["Connection"] != nil {
		unlistForwarded(h)
	}
	if o.User != "" {
		h[userHeader] = []string{headerText(o.User)}
	}
	if o.Tier != "" {
		h[tierHeader] = []string{headerText(o.Tier)}
	}
	if o.KeyID != 0 {
		h[keyHeader] = []string{strconv.FormatInt(o.KeyID, 10)}
	}
	if o.Rule != "" {
		h[ruleHeader] = []string{o.Rule}
	}
	if by := q.Outcome.ExceededBy; by > 0 {
		h[exceededHeader] = []string{headerText(q.Hits[q.Outcome.Exceeded].Limit.Prefix)}
		h[exceededByHeader] = []string{strconv.FormatInt(by, 10)}
	}
}

// escapes percent-encodes the characters that a header's value cannot have, and the percent sign, so that
// different texts have different values.
var escapes = func() *strings.Replacer {
	pairs := []string{"%", "%25", "\x7f", "%7F"}
	for c := 0; c < ' '; c++ {
		pairs = append(pairs, string(rune(c)), fmt.Sprintf("%%%02X", c))
	}
	return strings.NewReplacer(pairs...)
}()

// headerText encodes text as the value of a header, which cannot begin or end with a space.
func headerText(text string) string {
	text = escapes.Replace(text)
	if strings.HasPrefix(text, " ") {
		text = "%20" + text[1:]
	}
	if strings.HasSuffix(text, " ") {
		text = text[:len(text)-1] + "%20"
	}
	return text
}
