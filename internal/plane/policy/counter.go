package policy

import (
	"net/netip"
	"net/textproto"
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// dimensionNames are the valid names in CountBy, besides header:NAME.
var dimensionNames = []string{"user", "key", "tier", "ip", "ip/128", "host", "route", "all"}

const wantCountBy = "user, key, tier, ip, ip/128, host, route, header:NAME, " +
	"or alternatives of them such as user|ip, each once; or all alone"

// counterBy is a parsed CountBy.
type counterBy struct {
	parts      [][]*dimension // the parts of the key, each with its alternatives
	without    option.Without
	userOnly   bool // CountBy is user
	allOnly    bool // CountBy is all
	hasUser    bool // CountBy contains user
	usesSender bool // CountBy contains user, key or tier
	perSender  bool // each counter of an identity belongs to one user or key
}

// dimension is a property that a rule counts by.
type dimension struct {
	name   string // "header:" for a header
	header string // the canonical name of the header; "" for another dimension
	secret bool   // the header holds a secret
}

// parseCountBy parses the CountBy of a rule.
func parseCountBy(row *Rule) (counterBy, error) {
	names := row.CountBy
	if len(names) == 0 {
		names = []string{"user"}
	}
	by := counterBy{without: row.WithoutHeader}
	seen := map[string]bool{}
	for _, name := range names {
		var part []*dimension
		alternatives := strings.Split(name, "|")
		ofSender := true // all previous alternatives are properties of the sender
		for _, text := range alternatives {
			if text == "ip/64" { // before version 2 of the tables
				text = "ip"
			}
			d := &dimension{name: text}
			if header := strings.TrimPrefix(text, "header:"); header != text && option.HeaderName(header) {
				d.name = "header:"
				d.header = textproto.CanonicalMIMEHeaderKey(header)
				d.secret = option.CredentialHeader(d.header)
				text = d.name + d.header
			}
			if seen[text] || d.header == "" && !contains(dimensionNames, text) ||
				text == "all" && (len(names) > 1 || len(alternatives) > 1) {
				return by, option.Invalid("count_by", name, wantCountBy)
			}
			seen[text] = true
			part = append(part, d)
			// An identity with a billing period has a user, and may have no key.
			by.perSender = by.perSender || ofSender &&
				(text == "user" || text == "key" && len(alternatives) == 1)
			ofSender = ofSender && text == "key"
		}
		by.parts = append(by.parts, part)
	}
	by.hasUser = seen["user"]
	by.userOnly = by.hasUser && len(seen) == 1
	by.allOnly = seen["all"]
	by.usesSender = by.hasUser || seen["key"] || seen["tier"]
	return by, nil
}

// counterText escapes a value for the key of a counter. The key consists of the values that the rule counts
// by, in the order of CountBy, separated by spaces. In a value, a space becomes %20 and a percent sign %25.
// The value of a user is the user's id, in which a leading "ip:" becomes "ip%3A". The value of a request
// without a user is "ip:" and the network. Therefore no two senders have the same key. A missing or empty
// header has the value noHeader. The value of an alternative begins with its number, see AlternativeKey.
func counterText(value string) string { return counterEscapes.Replace(value) }

var counterEscapes = strings.NewReplacer("%", "%25", " ", "%20")

// userText returns the value of a user in a counter key, as rate_limit_counter_key in SQL.
func userText(user string) string {
	text := counterText(user)
	if strings.HasPrefix(text, "ip:") {
		text = "ip%3A" + text[len("ip:"):]
	}
	return text
}

// anonymousText returns the value of a request without a user in a counter key.
func anonymousText(address netip.Addr) string { return "ip:" + NetworkText(address) }

// UnknownAddress is the value of an unknown address in keys.
const UnknownAddress = "unknown"

var (
	nat64  = netip.MustParsePrefix("64:ff9b::/96")
	shared = netip.MustParsePrefix("100.64.0.0/10")
)

// ClientOf returns the address that counts for a client's address: the IPv4 address in an address of NAT64
// (RFC 6052), and otherwise the address itself. An IPv4 address that is not global does not count, because no
// translator uses it, so somebody has made up such an address.
func ClientOf(address netip.Addr) netip.Addr {
	if !nat64.Contains(address) {
		return address
	}
	bytes := address.As16()
	inner, _ := netip.AddrFromSlice(bytes[12:])
	if !inner.IsGlobalUnicast() || inner.IsPrivate() || shared.Contains(inner) {
		return address
	}
	return inner
}

// addressText returns the canonical text of an address.
func addressText(address netip.Addr) string {
	if !address.IsValid() {
		return UnknownAddress
	}
	return ClientOf(address).String()
}

// NetworkOf returns the network that counts as one client: a single IPv4 address, or the /64 of an IPv6
// address. NetworkOf returns the zero Prefix if the address is unknown.
func NetworkOf(address netip.Addr) netip.Prefix {
	address = ClientOf(address)
	bits := 64
	if address.Is4() {
		bits = 32
	}
	network, _ := address.Prefix(bits) // bits fits the address
	return network
}

// NetworkText returns the text of an IPv4 address or of the /64 of an IPv6 address, or UnknownAddress.
func NetworkText(address netip.Addr) string {
	if !address.IsValid() {
		return UnknownAddress
	}
	if address.Is4() { // without calls, because an interpreter would take long
		return address.String()
	}
	return strings.TrimSuffix(NetworkOf(address).String(), "/32")
}

// noHeader is the value of a header that is missing or empty. It differs from every result of counterText,
// because there a 2 follows each percent sign.
const noHeader = "%empty"

// AlternativeKey returns the value of an alternative in a counter key: its number, counted from 1, a bar, and
// text. A secret text is replaced by its digest. The number distinguishes a header from an address with the
// same text.
func AlternativeKey(number int, text string, secret bool) string {
	if secret {
		text = ratelimit.DigestKey(text)
	}
	return strconv.Itoa(number) + "|" + text
}

// severalValues stands for more than MaxValues values. It differs from every result of counterText.
const severalValues = "%several"

// emptyText is the list with which keys begin.
var emptyText = []string{""}

// counterKeys returns the keys of a rule's counters for a request, and whether they contain a secret. There
// are several keys if the request has several values of a header or a route: each is charged. If the request
// lacks a value that the rule counts by, keys is nil, and missing is the index of the part. user is the
// result of userText or anonymousText, and keyID the id of the API key.
func counterKeys(
	by *counterBy, f *Facts, user, keyID, tier string,
) (keys []string, secret bool, missing int) {
	keys = emptyText
	secret = false
	for p, part := range by.parts {
		values, isSecret := partValues(by, part, f, user, keyID, tier)
		if len(values) == 0 {
			return nil, false, p
		}
		secret = secret || isSecret
		if p > 0 {
			keys = Product(keys, []string{" "}, MaxValues)
		}
		if len(keys)*len(values) > MaxValues {
			values = []string{severalValues}
		}
		keys = Product(keys, values, MaxValues)
	}
	return keys, secret, 0
}

// partValues returns the values of a part of a key, and whether they are a secret that is no digest yet. The
// first alternative that the request has is used, and if one of its values is empty, the next one, too. Only
// the last alternative can be noHeader or the network of an anonymous request.
func partValues(
	by *counterBy, part []*dimension, f *Facts, user, keyID, tier string,
) (values []string, secret bool) {
	values = nil
	secret = false
	for i, d := range part {
		more := i+1 < len(part)
		isSecret := d.header != "" && (d.secret || contains(f.KeyHeaders, d.header))
		lacks := false
		for _, value := range valuesOf(d, f, user, keyID, tier, more) {
			if value == "" {
				lacks = true
				if value = withoutHeader(by, d, f, more); value == "" {
					continue
				}
			}
			if len(part) > 1 {
				value = AlternativeKey(i+1, value, isSecret)
			} else {
				secret = isSecret
			}
			values = append(values, value)
		}
		if !lacks {
			break
		}
	}
	return values, secret
}

// withoutHeader returns the value for a missing or an empty header, or "" for none.
func withoutHeader(by *counterBy, d *dimension, f *Facts, more bool) string {
	switch {
	case d.header == "" || more || by.without == option.WithoutSkip:
		return ""
	case f.Preflight:
		return "%preflight:" + NetworkText(f.Address)
	case by.without == option.WithoutRefuse:
		return ""
	}
	return noHeader
}

// refusesWithout reports whether a rule refuses the requests that lack a part of its key.
func refusesWithout(r *rule, missing int) bool {
	if r.countBy.without != option.WithoutRefuse || r.row.Mode == option.Shadow {
		return false
	}
	part := r.countBy.parts[missing]
	return part[len(part)-1].header != ""
}

// valuesOf returns the values of a dimension, at least one, which is "" if the request has none.
func valuesOf(d *dimension, f *Facts, user, keyID, tier string, more bool) []string {
	value := "all"
	switch d.name {
	case "user":
		value = user
		if more && strings.HasPrefix(user, "ip:") { // anonymous requests lack this alternative
			value = ""
		}
	case "key":
		value = keyID
	case "tier":
		value = counterText(tier)
	case "ip":
		value = NetworkText(f.Address)
	case "ip/128":
		value = addressText(f.Address)
	case "host":
		value = counterText(f.Host)
	case "route":
		value = f.Route
		if value != severalValues {
			value = counterText(value)
		}
		if f.Routes != nil {
			return counterTexts(f.Routes)
		}
	case "header:":
		var values []string
		if f.HTTP != nil {
			values = HeaderValues(f.HTTP.Header, d.header)
		}
		if contains(f.KeyHeaders, d.header) {
			accepted := ""
			if keyID != "" {
				accepted = f.Key
			}
			values = KeyValues(values, accepted)
		}
		if len(values) > 0 {
			return Distinct(counterTexts(networks(values)))
		}
		value = ""
	}
	return []string{value}
}

// networks replaces each value that is an address by its network.
func networks(values []string) []string {
	var texts []string
	for _, value := range values {
		if address, err := netip.ParseAddr(value); err == nil {
			value = NetworkText(ClientOf(address.Unmap().WithZone("")))
		}
		texts = append(texts, value)
	}
	return texts
}

// counterTexts returns counterText of each value.
func counterTexts(values []string) []string {
	var texts []string
	for _, value := range values {
		texts = append(texts, counterText(value))
	}
	return texts
}
