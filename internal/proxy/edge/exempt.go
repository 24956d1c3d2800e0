package edge

import (
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// ExemptSettings say which requests the limits of a configuration are not for.
type ExemptSettings struct {
	networks []netip.Prefix
	header   string // canonical; "" is none
	secret   string // or a placeholder that gives it
}

// leastSecret is how many characters a secret must have.
const leastSecret = 16

const (
	wantExempt       = "networks or addresses with spaces between them, such as 10.0.0.0/8 192.0.2.7"
	wantExemptHeader = "the name of a header and a secret, or a placeholder that gives one, such as {env.SECRET}"
)

// readExempt reads networks.
func readExempt(to *Settings, text string) error {
	for _, word := range strings.Fields(text) {
		network, err := netip.ParsePrefix(word)
		if err != nil {
			address, failure := netip.ParseAddr(word)
			if failure != nil || address.Zone() != "" {
				return &ratelimit.FieldError{Value: word, Want: wantExempt}
			}
			address = address.Unmap()
			network = netip.PrefixFrom(address, address.BitLen())
		}
		to.Exempt.networks = append(to.Exempt.networks, network.Masked())
	}
	return nil
}

// readExemptHeader reads a header and a secret. No error has the secret.
func readExemptHeader(to *Settings, text string) error {
	if text == "" {
		return nil
	}
	words := strings.Fields(text)
	if len(words) != 2 || !isHeaderName(words[0]) {
		return &ratelimit.FieldError{Want: wantExemptHeader}
	}
	to.Exempt.header = http.CanonicalHeaderKey(words[0])
	to.Exempt.secret = words[1]
	if strings.IndexByte(words[1], '{') >= 0 {
		return nil
	}
	return checkSecret(to.Exempt.header, words[1])
}

func checkSecret(header, secret string) error {
	if len(secret) < leastSecret {
		return &ratelimit.FieldError{Field: "exempt_header", Value: header + " …", Want: "with a secret of " + strconv.Itoa(leastSecret) + " characters or more"}
	}
	return nil
}

// Exempt are compiled ExemptSettings.
type Exempt struct {
	networks []netip.Prefix
	header   string
	digest   [sha256.Size]byte // of the secret
}

// Compile returns nil if no request is exempt. expand returns a secret without placeholders; its errors must not
// have the secret.
func (s *ExemptSettings) Compile(expand func(text string) (string, error)) (*Exempt, error) {
	if len(s.networks) == 0 && s.header == "" {
		return nil, nil
	}
	e := &Exempt{networks: s.networks, header: s.header}
	if s.header == "" {
		return e, nil
	}
	secret := s.secret
	if strings.IndexByte(secret, '{') >= 0 {
		var err error
		if secret, err = expand(s.secret); err != nil {
			return nil, &ratelimit.FieldError{Field: "exempt_header", Value: s.header + " …", Want: "with a secret: " + err.Error()}
		}
	}
	if err := checkSecret(s.header, secret); err != nil {
		return nil, err
	}
	e.digest = sha256.Sum256([]byte(secret))
	return e, nil
}

// IsExempt reports whether the limits of the configuration are not for a request. It removes the header with the
// secret, so that the upstream does not get it.
func (e *Exempt) IsExempt(h http.Header, address netip.Addr) bool {
	exempt := false
	if e.header != "" {
		values := h[e.header]
		if len(values) == 1 {
			given := sha256.Sum256([]byte(values[0]))
			exempt = subtle.ConstantTimeCompare(given[:], e.digest[:]) == 1
		}
		delete(h, e.header)
	}
	address = address.Unmap().WithZone("")
	for i := range e.networks {
		exempt = exempt || e.networks[i].Contains(address)
	}
	return exempt
}
