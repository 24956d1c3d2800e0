package edge

import (
	"net/http"
	"strconv"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// HeaderPolicy says which X-RateLimit headers a response has if the upstream sends some of
// its own. Retry-After of the upstream is never changed: a request that passes gets none
// from a limit.
type HeaderPolicy string

// The values of HeaderPolicy.
const (
	OurHeaders     HeaderPolicy = "ours"    // those of the limit
	TighterHeaders HeaderPolicy = "tighter" // those that tell of less remaining
	BothHeaders    HeaderPolicy = "both"    // the upstream's stand beside those of the limit
)

const wantHeaders = "ours, tighter or both"

// ParseHeaderPolicy reads a HeaderPolicy; "" is unset.
func ParseHeaderPolicy(text string, unset HeaderPolicy) (HeaderPolicy, error) {
	switch text {
	case "":
		return unset, nil
	case string(OurHeaders), string(TighterHeaders), string(BothHeaders):
		return HeaderPolicy(text), nil
	}
	return "", &ratelimit.FieldError{Field: "headers", Value: text, Want: wantHeaders}
}

// ownValues is how many headers SetHeaders sets, in the order of OwnHeaders.
const ownValues = 3

// ownNames are the names of OwnHeaders.
var ownNames = []string{"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset"}

// OwnHeaders are the limit, what is remaining and the reset as SetHeaders has set them, or
// nil.
type OwnHeaders []string

// HeadersOf returns the headers that SetHeaders has just set.
func HeadersOf(h http.Header) OwnHeaders {
	limit, remaining, reset := h["X-Ratelimit-Limit"], h["X-Ratelimit-Remaining"], h["X-Ratelimit-Reset"]
	if len(limit) == 0 || len(remaining) == 0 || len(reset) == 0 {
		return nil
	}
	return OwnHeaders{limit[0], remaining[0], reset[0]}
}

// RestoreHeaders removes the headers that an upstream has added to our own, or our own if
// the policy says so. With BothHeaders it adds our own if they are missing. It is for the moment before
// the headers are sent.
func RestoreHeaders(h http.Header, own OwnHeaders, policy HeaderPolicy) {
	if policy == BothHeaders {
		for i, value := range own {
			if values := h[ownNames[i]]; len(values) == 0 || values[0] != value {
				h[ownNames[i]] = append([]string{value}, values...)
			}
		}
		return
	}
	if policy == TighterHeaders && isTighter(h["X-Ratelimit-Remaining"], own[1]) {
		keepTheirs(h, "X-Ratelimit-Limit", own[0])
		keepTheirs(h, "X-Ratelimit-Remaining", own[1])
		keepTheirs(h, "X-Ratelimit-Reset", own[2])
		return
	}
	h["X-Ratelimit-Limit"] = own[0:1:1]
	h["X-Ratelimit-Remaining"] = own[1:2:2]
	h["X-Ratelimit-Reset"] = own[2:3:3]
}

// isTighter reports whether the last value tells of less remaining than our own.
func isTighter(values []string, own string) bool {
	if len(values) == 0 {
		return false
	}
	theirs, err := strconv.ParseInt(values[len(values)-1], 10, 64)
	if err != nil {
		return false
	}
	ours, err := strconv.ParseInt(own, 10, 64)
	return err == nil && theirs < ours
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
