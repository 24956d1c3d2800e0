package policy

import (
	"net/netip"
	"net/textproto"
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// dimensions are the names that CountBy may have, besides header:NAME.
var dimensions = []string{"user", "key", "tier", "ip", "ip/64", "host", "route", "all"}

const wantCountBy = "user, key, tier, ip, ip/64, host, route, header:NAME, " +
	"or alternatives of them such as user|ip, each once; or all alone"

// counterBy is a parsed CountBy.
type counterBy struct {
	parts   [][]*counted // each has one dimension, or several, its alternatives
	skips   bool         // Rule.SkipWithoutHeader
	user    bool         // user alone
	all     bool         // all alone
	hasUser bool         // user is among them
	sender  bool         // user, key or tier is among them
	person  bool         // each counter of an identity's request is of one user or key
}

// counted is a dimension that a rule counts by.
type counted struct {
	name   string // "header:" of a header
	header string // canonical; "" for another dimension
	secret bool   // the header holds a secret
}

// parseCountBy parses the CountBy of a rule.
func parseCountBy(row *Rule) (counterBy, error) {
	names := row.CountBy
	if len(names) == 0 {
		names = []string{"user"}
	}
	by := counterBy{skips: row.SkipWithoutHeader}
	seen := make(map[string]bool)
	for _, name := range names {
		var part []*counted
		alternatives := strings.Split(name, "|")
		certain := true // no alternative before is of something other than the sender
		for _, text := range alternatives {
			d := &counted{name: text}
			if header := strings.TrimPrefix(text, "header:"); header != text && settings.HeaderName(header) {
				d.name = "header:"
				d.header = textproto.CanonicalMIMEHeaderKey(header)
				d.secret = settings.CredentialHeader(d.header)
				text = d.name + d.header
			}
			if seen[text] || d.header == "" && !isAmong(dimensions, text) ||
				text == "all" && (len(names) > 1 || len(alternatives) > 1) {
				return by, &ratelimit.FieldError{Field: "count_by", Value: name, Want: wantCountBy}
			}
			seen[text] = true
			part = append(part, d)
			// An identity with a billing period has a user, and may have no key.
			by.person = by.person || certain &&
				(text == "user" || text == "key" && len(alternatives) == 1)
			certain = certain && text == "key"
		}
		by.parts = append(by.parts, part)
	}
	by.hasUser = seen["user"]
	by.user = by.hasUser && len(seen) == 1
	by.all = seen["all"]
	by.sender = by.hasUser || seen["key"] || seen["tier"]
	return by, nil
}

// counterText returns a part of the key of a counter. The key is the values that the rule counts by,
// in their order, with a space between them. In a value, a space is written %20 and a percent
// sign %25. The value of a user is the user's id; "ip:" at the beginning of the id is written
// "ip%3A". The value of a request without a user is "ip:" and the network. So no two senders
// have the same key. A header that is missing or empty is noHeader. The value of one of several alternatives
// begins with its number, see AlternativeKey. If a rule counts by user alone, the key is the user's id.
func counterText(value string) string { return counterEscapes.Replace(value) }

var counterEscapes = strings.NewReplacer("%", "%25", " ", "%20")

// userText returns the part of a counter's key that is a user.
func userText(user string) string {
	text := counterText(user)
	if strings.HasPrefix(text, "ip:") {
		text = "ip%3A" + text[len("ip:"):]
	}
	return text
}

// nobodyText returns that part for a request without a user; "" if the address is unknown.
func nobodyText(address netip.Addr) string {
	text := networkText(address)
	if text != "" {
		text = "ip:" + text
	}
	return text
}

// addressText returns the one form of an address; "" if it is unknown.
func addressText(address netip.Addr) string {
	if !address.IsValid() {
		return ""
	}
	return plainAddress(address).String()
}

// NetworkOf returns the network that counts as one client: an IPv4 address, or the /64 of an IPv6
// address. It is the zero Prefix if the address is unknown.
func NetworkOf(address netip.Addr) netip.Prefix {
	bits := 64
	address = address.Unmap()
	if address.Is4() {
		bits = 32
	}
	network, _ := address.Prefix(bits) // of a length that such an address has
	return network
}

// networkText returns an IPv4 address, or the /64 of an IPv6 address; "" if it is unknown.
func networkText(address netip.Addr) string {
	if !address.IsValid() {
		return ""
	}
	return strings.TrimSuffix(NetworkOf(address).String(), "/32")
}

// noHeader is the part of a counter's key for a header that is missing or empty. No result of
// counterText has a percent sign before another character than 2.
const noHeader = "%empty"

// AlternativeKey returns the key, or a part of one, if the first of several alternatives that is not empty
// has this text: its number, from 1 on, a bar, and the text, or its digest if it is a secret. So a header
// with the text of an address is not that address.
func AlternativeKey(number int, text string, secret bool) string {
	if secret {
		text = ratelimit.DigestKey(text)
	}
	return strconv.Itoa(number) + "|" + text
}

// counterKey returns the key of a rule's counters for a request, or "" if the request lacks what the rule
// counts by, and whether it holds a secret. user is the result of userText or of nobodyText, key that of the
// API key's id. Of alternatives, the first that the request has counts, and the last one as it would without
// the others.
func counterKey(by *counterBy, f *Facts, user, key, tier string) (text string, secret bool) {
	text = ""
	secret = false
	for _, part := range by.parts {
		value := ""
		for i, d := range part {
			more := i+1 < len(part)
			hides := false
			switch d.name {
			case "user":
				if !more || !strings.HasPrefix(user, "ip:") { // nobody has that
					value = user
				}
			case "key":
				value = key
			case "tier":
				value = counterText(tier)
			case "ip":
				value = addressText(f.Address)
			case "ip/64":
				value = networkText(f.Address)
			case "host":
				value = counterText(f.Host)
			case "route":
				value = counterText(f.Route)
			case "header:":
				value = counterText(strings.Join(f.Header[d.header], ","))
				hides = d.secret || isAmong(f.KeyHeaders, d.header)
				if value == "" && !by.skips && !more {
					value = noHeader
				}
			case "all":
				value = "all"
			}
			if value == "" {
				continue
			}
			if len(part) > 1 {
				value = AlternativeKey(i+1, value, hides)
			} else {
				secret = hides || secret
			}
			break
		}
		if value == "" {
			return "", false
		}
		if text != "" {
			text += " "
		}
		text += value
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
