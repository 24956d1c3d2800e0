package policy

import (
	"net/netip"
	"net/textproto"
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
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

const wantCountBy = "user, key, tier, ip, ip/64, host, route, header:NAME, " +
	"or alternatives of them such as user|ip, each once; or all alone"

// counterBy is a parsed CountBy. A name in CountBy is one dimension, or several, its alternatives, which
// follow each other.
type counterBy struct {
	dimensions []*counted
	skips      bool // Rule.SkipWithoutHeader
	user       bool // user alone
	all        bool // all alone
	hasUser    bool // user is among them
	sender     bool // user, key or tier is among them
	person     bool // each counter of an identity's request is of one user or key
}

// counted is a dimension that a rule counts by.
type counted struct {
	kind   dimension
	header string // canonical; "" for another dimension
	secret bool   // the header holds a secret
	number int    // of an alternative, 1 and up; 0 if it stands alone
	more   bool   // another alternative follows
}

func parseCountBy(names []string) (counterBy, error) {
	if len(names) == 0 {
		names = []string{"user"}
	}
	var by counterBy
	seen := make(map[string]bool)
	for _, name := range names {
		alternatives := strings.Split(name, "|")
		certain := true // no alternative before is of something other than the sender
		for i, text := range alternatives {
			found, header := parseDimension(text)
			if header != "" {
				text = "header:" + header
			}
			d := dimension(found)
			if found < 0 || seen[text] || d == byAll && (len(names) > 1 || len(alternatives) > 1) {
				return by, &ratelimit.FieldError{Field: "count_by", Value: name, Want: wantCountBy}
			}
			seen[text] = true
			number := 0
			if len(alternatives) > 1 {
				number = i + 1
			}
			more := i+1 < len(alternatives)
			part := &counted{kind: d, header: header, number: number, more: more}
			by.dimensions = append(by.dimensions, part)
			// An identity with a billing period has a user, and may have no key.
			by.person = by.person || certain && (d == byUser || d == byKey && len(alternatives) == 1)
			certain = certain && d == byKey
			by.sender = by.sender || d == byUser || d == byKey || d == byTier
		}
	}
	by.hasUser = seen["user"]
	by.user = by.hasUser && len(by.dimensions) == 1
	by.all = seen["all"]
	return by, nil
}

// parseDimension returns the number of a dimension, or -1, and the canonical name of its header, or "".
func parseDimension(text string) (found int, header string) {
	if rest := strings.TrimPrefix(text, "header:"); rest != text && settings.HeaderName(rest) {
		return int(byHeader), textproto.CanonicalMIMEHeaderKey(rest)
	}
	for d := range dimensions {
		if text == dimensions[d] && dimension(d) != byHeader {
			return d, ""
		}
	}
	return -1, ""
}

// counterText is a part of the key of a counter. The key is the values that the rule counts by,
// in their order, with a space between them. In a value, a space is written %20 and a percent
// sign %25. The value of a user is the user's id; "ip:" at the beginning of the id is written
// "ip%3A". The value of a request without a user is "ip:" and the network. So no two senders
// have the same key. A header that is missing or empty is noHeader. The value of one of several alternatives
// begins with its number, see AlternativeKey. If a rule counts by user alone, the key is the user's id.
func counterText(value string) string { return counterEscapes.Replace(value) }

var counterEscapes = strings.NewReplacer("%", "%25", " ", "%20")

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

// AlternativeKey is the key, or a part of one, if the first of several alternatives that is not empty has
// this text: its number, from 1 on, a bar, and the text, or its digest if it is a secret. So a header with
// the text of an address is not that address.
func AlternativeKey(number int, text string, secret bool) string {
	if secret {
		text = ratelimit.DigestKey(text)
	}
	return strconv.Itoa(number) + "|" + text
}

// counterKey is the key of a rule's counters for a request, or "" if the request lacks what the rule counts
// by, and whether it holds a secret. user is the result of userText or of nobodyText, key that of the API
// key's id. Of alternatives, the first that the request has counts, and the last one as it would without the
// others.
func counterKey(by *counterBy, f *Facts, user, key, tier string) (text string, secret bool) {
	text = ""
	secret = false
	chosen := false // an alternative, and the next dimension is another one of the same
	for _, d := range by.dimensions {
		if chosen {
			chosen = d.more
			continue
		}
		part := ""
		hides := false
		switch d.kind {
		case byUser:
			part = user
			if d.more && strings.HasPrefix(user, "ip:") {
				part = "" // nobody
			}
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
			values := f.Header[d.header]
			if len(values) == 1 {
				part = counterText(values[0])
			} else if len(values) > 1 {
				part = counterText(strings.Join(values, ","))
			}
			hides = d.secret || isAmong(f.KeyHeaders, d.header)
			if part == "" && !by.skips && !d.more {
				part = noHeader
			}
		case byAll:
			part = "all"
		}
		if part == "" {
			if d.more {
				continue
			}
			return "", false
		}
		chosen = d.more
		if d.number > 0 {
			part = AlternativeKey(d.number, part, hides)
		} else {
			secret = secret || hides
		}
		if text != "" {
			text += " "
		}
		text += part
	}
	return text, secret
}

func isAmong(names []string, name string) bool {
	for i := range names {
		if names[i] == name {
			return true
		}
	}
	return false
}
