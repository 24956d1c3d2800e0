package settings

import (
	"net/netip"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// OnError selects what happens to a request without a decision.
type OnError string

// The values of OnError.
const (
	Allow OnError = "allow" // the request passes: limits are not enforced meanwhile
	Deny  OnError = "deny"  // the request is refused with status 503
	Local OnError = "local" // this process decides, at its share of each limit
)

// Fields selects the header fields of a response that describe the limits.
type Fields struct {
	X    bool // X-RateLimit-Limit, X-RateLimit-Remaining, X-RateLimit-Reset and X-RateLimit-Overage
	IETF bool // RateLimit-Policy and RateLimit of draft-ietf-httpapi-ratelimit-headers-11
}

// Errors selects the error in the body of a refusal.
type Errors string

// The values of Errors, except text, as in {"error":"Too many requests","retryAfter":27}.
const (
	ErrorsByRequest Errors = ""       // an object for clients of language models, else a text
	ErrorsObject    Errors = "object" // an object with a message, a type and a code
)

// DefaultTier is the tier of requests without another tier.
const DefaultTier = "anonymous"

// readTimeout reads Settings.Timeout, in the syntax of ratelimit.ParseWindow.
func readTimeout(dst *Settings, text string) error {
	d, err := ratelimit.ParseWindow(text)
	if err != nil || d < time.Millisecond || d > time.Minute {
		return errWant
	}
	dst.Timeout = d
	return nil
}

// readMaxBody reads Settings.MaxBody.
func readMaxBody(dst *Settings, text string) (err error) {
	dst.MaxBody, err = parseSize(text)
	return err
}

const wantExempt = "networks or addresses with spaces between them, such as 10.0.0.0/8 192.0.2.7"

// readExempt reads Settings.Exempt.
func readExempt(dst *Settings, text string) error {
	for _, word := range strings.Fields(text) {
		network, ok := ParseNetwork(word)
		if !ok {
			return option.Invalid("", word, wantExempt)
		}
		dst.Exempt = append(dst.Exempt, network)
	}
	return nil
}

// ParseNetwork parses a network, or an address without a zone, which becomes a network of one address.
func ParseNetwork(text string) (netip.Prefix, bool) {
	if network, err := netip.ParsePrefix(text); err == nil {
		return network.Masked(), true
	}
	address, err := netip.ParseAddr(text)
	address = address.Unmap()
	return netip.PrefixFrom(address, address.BitLen()), err == nil && address.Zone() == ""
}
