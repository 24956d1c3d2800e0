package respond

import (
	"net/http"
	"strings"
)

// ownNames are the canonical names of the headers that describe limits, in the order of Own.
var ownNames = []string{"X-Ratelimit-Limit", "X-Ratelimit-Remaining", "X-Ratelimit-Reset", policyField,
	limitField, "X-Ratelimit-Overage"}

// xNames is the number of names at the start of ownNames that SetFields sets together. Of these, Reset may
// be missing.
const xNames = 3

// Own holds the values of a response's headers that describe limits, in the order of ownNames. "" is a
// missing header. Nil has no header.
type Own []string

// OwnCount is the number of ownNames.
const OwnCount = 6

// OwnIn returns the headers that SetFields has set in h. It uses the memory of own, which has OwnCount
// elements.
func OwnIn(h http.Header, own Own) Own {
	found := false
	for i, name := range ownNames {
		own[i] = ""
		if values := h[name]; len(values) > 0 {
			own[i] = values[0]
			found = true
		}
	}
	if !found {
		return nil
	}
	return own
}

// WithoutX returns own without X-RateLimit-Limit, X-RateLimit-Remaining and X-RateLimit-Reset.
func WithoutX(own Own) Own {
	if own == nil {
		return nil
	}
	return append(make(Own, xNames), own[xNames:]...)
}

// Restore replaces the headers of an upstream by own, and reports whether one differed. Callers call it just
// before they send the headers. It keeps headers of kinds that own does not have, and the upstream's
// Retry-After, since a limit sets none on a request that passes.
func Restore(h http.Header, own Own) bool {
	differed := false
	for i, value := range own {
		values := h[ownNames[i]]
		isField := ownNames[i] == policyField || ownNames[i] == limitField
		switch {
		case value == "" && (i >= xNames || own[0] == ""):
			continue
		case len(values) < 2 && strings.Join(values, "") == value:
			continue
		case isField && len(values) > 0 && strings.HasPrefix(values[0], value):
			value = values[0] // a later limit in this proxy may have added members
		}
		differed = true
		if value == "" {
			delete(h, ownNames[i])
		} else {
			h[ownNames[i]] = []string{value}
		}
	}
	return differed
}
