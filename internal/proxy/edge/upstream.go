package edge

import (
	"net/http"
	"strconv"
)

// HeaderPolicy says which X-RateLimit headers a response has if the upstream sends some of
// its own. Retry-After of the upstream is never changed: a request that passes gets none
// from a limit.
type HeaderPolicy string

// The values of HeaderPolicy.
const (
	AutoHeaders    HeaderPolicy = "auto"    // those of the limit; the plugin does not change the first responses
	OurHeaders     HeaderPolicy = "ours"    // those of the limit
	TighterHeaders HeaderPolicy = "tighter" // those that tell of less remaining
	BothHeaders    HeaderPolicy = "both"    // the upstream's stand beside those of the limit
)

// readHeaderPolicy reads a HeaderPolicy.
func readHeaderPolicy(to *Settings, text string) error {
	to.Headers = HeaderPolicy(text)
	switch to.Headers {
	case AutoHeaders, OurHeaders, TighterHeaders, BothHeaders:
		return nil
	}
	return errWant
}

// ownNames are the names of OwnHeaders.
var ownNames = []string{"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset"}

// RestoreHeaders leaves one value of each header: ours, or with TighterHeaders the upstream's if that
// has less remaining. With BothHeaders all values stay, and ours come first. It is called just before the
// headers are sent. Without own headers it does nothing.
func RestoreHeaders(h http.Header, own OwnHeaders, policy HeaderPolicy) {
	if own == nil {
		return
	}
	if policy == BothHeaders {
		for i, value := range own {
			if values := h[ownNames[i]]; value != "" && (len(values) == 0 || values[0] != value) {
				h[ownNames[i]] = append([]string{value}, values...)
			}
		}
		return
	}
	ours, err := strconv.ParseInt(own[1], 10, 64)
	theirs := policy == TighterHeaders && err == nil && HasLessRemaining(h, ours)
	for i, name := range ownNames {
		switch {
		case theirs:
			keepTheirs(h, name, own[i])
		case own[i] == "":
			delete(h, name)
		default:
			h[name] = own[i : i+1 : i+1]
		}
	}
}

// keepTheirs leaves the last value of a header, unless it is our own.
func keepTheirs(h http.Header, name, own string) {
	values := h[name]
	switch {
	case len(values) == 0:
	case len(values) == 1 && values[0] == own:
		delete(h, name)
	default:
		h[name] = values[len(values)-1:]
	}
}
