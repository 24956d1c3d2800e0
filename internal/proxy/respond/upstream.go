package respond

import (
	"net/http"
	"strings"
)

// ownNames are the names of OwnHeaders.
var ownNames = []string{"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset"}

// OwnHeadersIn returns the headers in h that SetHeaders has set, or nil.
func OwnHeadersIn(h http.Header) OwnHeaders {
	if len(h[ownNames[0]]) == 0 {
		return nil
	}
	own := make(OwnHeaders, len(ownNames))
	for i, name := range ownNames {
		if values := h[name]; len(values) != 0 {
			own[i] = values[0]
		}
	}
	return own
}

// RestoreHeaders replaces the X-RateLimit headers of an upstream by own, and reports whether one differed.
// Callers call it just before they send the headers. If own is nil, it does nothing. It keeps the
// upstream's Retry-After, since a limit sets none on a request that passes.
func RestoreHeaders(h http.Header, own OwnHeaders) bool {
	differed := false
	for i := range own {
		values := h[ownNames[i]]
		if len(values) < 2 && strings.Join(values, "") == own[i] {
			continue
		}
		differed = true
		if own[i] == "" {
			delete(h, ownNames[i])
		} else {
			h[ownNames[i]] = own[i : i+1 : i+1]
		}
	}
	return differed
}
