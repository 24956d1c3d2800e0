package respond

import "net/http"

// ownNames are the names of OwnHeaders.
var ownNames = []string{"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset"}

// RestoreHeaders replaces the X-RateLimit headers of an upstream by own. Callers call it just before they
// send the headers. If own is nil, it does nothing. It leaves Retry-After of the upstream, since a limit sets
// none on a request that passes.
func RestoreHeaders(h http.Header, own OwnHeaders) {
	for i := range own {
		if own[i] == "" {
			delete(h, ownNames[i])
		} else {
			h[ownNames[i]] = own[i : i+1 : i+1]
		}
	}
}
