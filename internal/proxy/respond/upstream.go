package respond

import "net/http"

// ownNames are the names of OwnHeaders.
var ownNames = []string{"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset"}

// RestoreHeaders replaces the X-RateLimit headers of an upstream by those of the limit. Callers call it just
// before they send the headers. Without own headers it does nothing. Retry-After of the upstream stays: a
// request that passes gets none from a limit.
func RestoreHeaders(h http.Header, own OwnHeaders) {
	for i := range own {
		if own[i] == "" {
			delete(h, ownNames[i])
		} else {
			h[ownNames[i]] = own[i : i+1 : i+1]
		}
	}
}
