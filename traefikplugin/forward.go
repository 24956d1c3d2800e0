package traefikplugin

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
)

// The request headers that tell the upstream what the proxy knows.
const (
	userHeader       = "X-Ratelimit-User"
	tierHeader       = "X-Ratelimit-Tier"
	keyHeader        = "X-Ratelimit-Key-Id"
	ruleHeader       = "X-Ratelimit-Rule"
	exceededHeader   = "X-Ratelimit-Exceeded"
	exceededByHeader = "X-Ratelimit-Exceeded-By"
)

// removeForwarded removes a client's own headers of the names that forward sets, also if they
// are written with underscores, which many upstreams take for the same.
func removeForwarded(h http.Header) {
	for name := range h {
		switch len(name) {
		case len(userHeader), len(keyHeader), len(exceededHeader), len(exceededByHeader):
			if isForwarded(name) {
				delete(h, name)
			}
		}
	}
}

func isForwarded(name string) bool {
	switch strings.ToLower(strings.Replace(name, "_", "-", -1)) {
	case "x-ratelimit-user", "x-ratelimit-tier", "x-ratelimit-rule", "x-ratelimit-key-id",
		"x-ratelimit-exceeded", "x-ratelimit-exceeded-by":
		return true
	}
	return false
}

// unlistForwarded removes the names that forward sets from Connection: a proxy does not pass on
// the headers that Connection names, and a client could so hide them from the upstream.
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

// forward sets the headers that tell the upstream what the policy knows, and which limit was exceeded and let
// the request pass. What is unknown has no header.
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

// headerText is text as the value of a header. What a header cannot have is percent-encoded:
// control characters, and spaces at the ends. So is a percent sign, so that no two texts have
// one value.
func headerText(text string) string {
	last := len(text) - 1
	for i := 0; i <= last; i++ {
		if text[i] < ' ' || text[i] == 0x7f || text[i] == '%' || text[i] == ' ' && (i == 0 || i == last) {
			return encodedText(text)
		}
	}
	return text
}

func encodedText(text string) string {
	encoded := ""
	last := len(text) - 1
	for i := 0; i <= last; i++ {
		c := text[i]
		if c < ' ' || c == 0x7f || c == '%' || c == ' ' && (i == 0 || i == last) {
			encoded += fmt.Sprintf("%%%02X", c)
		} else {
			encoded += text[i : i+1]
		}
	}
	return encoded
}
