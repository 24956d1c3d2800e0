package policy

import (
	"net/netip"
	"net/textproto"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// dimension is a part of what a rule counts by.
type dimension uint8

const (
	byUser dimension = iota
	byKey
	byTier
	byAddress
	byNetwork
	byHost
	byRoute
	byHeader
	byAll
)

// dimensions are the names in CountBy, by dimension.
var dimensions = []string{"user", "key", "tier", "ip", "ip/64", "host", "route", "header:", "all"}

const wantCountBy = "user, key, tier, ip, ip/64, host, route, header:NAME, each once, or all alone"

// counterBy is a parsed CountBy.
type counterBy struct {
	dimensions []dimension
	headers    []string // of each dimension, "" if it is no header; canonical
	skips      bool     // Rule.SkipWithoutHeader
	user       bool     // user alone
	all        bool     // all alone
	hasUser    bool     // user is among them
	person     bool     // each counter is of one user or key
	tier       bool     // tier is among them
}

func parseCountBy(names []string) (counterBy, error) {
	if len(names) == 0 {
		names = []string{"user"}
	}
	var by counterBy
	seen := make(map[string]bool)
	for _, name := range names {
		header := ""
		found := -1
		for d := range dimensions {
			if name == dimensions[d] && dimension(d) != byHeader {
				found = d
			}
		}
		if rest := strings.TrimPrefix(name, "header:"); rest != name && headerName(rest) {
			found = int(byHeader)
			header = textproto.CanonicalMIMEHeaderKey(rest)
			name = "header:" + header
		}
		if found < 0 || seen[name] || dimension(found) == byAll && len(names) > 1 {
			return by, &ratelimit.FieldError{Field: "count_by", Value: name, Want: wantCountBy}
		}
		seen[name] = true
		by.dimensions = append(by.dimensions, dimension(found))
		by.headers = append(by.headers, header)
		by.person = by.person || found == int(byUser) || found == int(byKey)
	}
	by.hasUser = seen["user"]
	by.tier = seen["tier"]
	by.user = len(names) == 1 && by.dimensions[0] == byUser
	by.all = by.dimensions[0] == byAll
	return by, nil
}

// countsHeader reports whether a rule counts by one of the headers.
func countsHeader(by *counterBy, names []string) bool {
	for _, header := range by.headers {
		for _, name := range names {
			if header == name {
				return true
			}
		}
	}
	return false
}

// headerName reports whether text is a token as the names of headers are.
func headerName(text string) bool {
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`"(),/:;<=>?@[\]{}`, c) >= 0 {
			return false
		}
	}
	return text != ""
}

// counterText is a part of the key of a counter. The key is the values that the rule counts by,
// in their order, with a space between them. In a value, a space is written %20 and a percent
// sign %25. The value of a user is the user's id; "ip:" at the beginning of the id is written
// "ip%3A". The value of a request without a user is "ip:" and the network. So no two senders
// have the same key. A header that is missing or empty is noHeader. If a rule counts by user alone,
// the key is the user's id.
func counterText(value string) string {
	if strings.IndexByte(value, '%') >= 0 {
		value = strings.ReplaceAll(value, "%", "%25")
	}
	if strings.IndexByte(value, ' ') >= 0 {
		value = strings.ReplaceAll(value, " ", "%20")
	}
	return value
}

// userText is the part of a counter's key that is a user.
func userText(user string) string {
	text := counterText(user)
	if strings.HasPrefix(text, "ip:") {
		text = "ip%3A" + text[len("ip:"):]
	}
	return text
}

// nobodyText is that part for a request without a user; "" if the address is unknown.
func nobodyText(address netip.Addr) string {
	text := networkText(address)
	if text != "" {
		text = "ip:" + text
	}
	return text
}

// addressText is an address in its one form; "" if it is unknown.
func addressText(address netip.Addr) string {
	if !address.IsValid() {
		return ""
	}
	return address.Unmap().WithZone("").String()
}

// NetworkOf is the network that counts as one client: an IPv4 address, or the /64 of an IPv6
// address. It is the zero Prefix if the address is unknown.
func NetworkOf(address netip.Addr) netip.Prefix {
	bits := 64
	address = address.Unmap()
	if address.Is4() {
		bits = 32
	}
	network, err := address.WithZone("").Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return network
}

// networkText is an IPv4 address, or the /64 of an IPv6 address; "" if it is unknown.
func networkText(address netip.Addr) string {
	network := NetworkOf(address)
	switch {
	case !network.IsValid():
		return ""
	case network.Addr().Is4():
		return network.Addr().String()
	}
	return network.String()
}

// noHeader is the part of a counter's key for a header that is missing or empty. No result of
// counterText has a percent sign before another character than 2.
const noHeader = "%empty"

// counterKey is the key of a rule's counters for a request, or "" if the request lacks what
// the rule counts by. user is the result of userText or of nobodyText, key that of the API
// key's id.
func counterKey(by *counterBy, f *Facts, user, key, tier string) string {
	text := ""
	for i, d := range by.dimensions {
		part := ""
		switch d {
		case byUser:
			part = user
		case byKey:
			part = key
		case byTier:
			part = counterText(tier)
		case byAddress:
			part = addressText(f.Address)
		case byNetwork:
			part = networkText(f.Address)
		case byHost:
			part = counterText(f.Host)
		case byRoute:
			part = counterText(f.Route)
		case byHeader:
			values := f.Header[by.headers[i]]
			if len(values) == 1 {
				part = counterText(values[0])
			} else if len(values) > 1 {
				part = counterText(strings.Join(values, ","))
			}
			if part == "" && !by.skips {
				part = noHeader
			}
		case byAll:
			part = "all"
		}
		if part == "" {
			return ""
		}
		if i > 0 {
			text += " "
		}
		text += part
	}
	return text
}
