// Package policytest returns random rules and requests for tests of package policy.
package policytest

import (
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Pick returns a number from 0 to n-1, as a source of random choices.
type Pick func(n int) int

// Now is the time around which the rules of a World start and end, within two hours.
var Now = time.Date(2026, 3, 14, 12, 0, 0, 0, time.UTC)

// World is the content of a policy database.
type World struct {
	Rules      []policy.Rule
	Overrides  []policy.Override // for tiers
	Bans       []policy.Ban
	Identities []*policy.Identity
}

var (
	tiers        = []string{"free", "pro", "enterprise", "anonymous"}
	methods      = []string{"GET", "POST", "DELETE", "PATCH"}
	hosts        = []string{"a.test", "api.a.test", "v2.api.a.test", "b.test", "x.b.test"}
	hostPatterns = []string{"a.test", "*.a.test", "*.api.a.test", "B.test", "*.test", "api.a.test"}
	words        = []string{"api", "Api", "v1", "V1", "v2", "u", "files", "x"}
	countBys     = [][]string{
		nil, {"user"}, {"key"}, {"tier"}, {"ip"}, {"ip/128"}, {"host"}, {"route"},
		{"header:x-tenant"}, {"all"},
		{"user", "host"}, {"key", "route"}, {"header:X-Tenant", "ip/128"}, {"tier", "header:X-Other"},
		{"user|ip"}, {"key|header:X-Tenant|ip/128", "host"}, {"header:X-Other|user"}, {"host", "key|user"},
	}
	withouts = []option.Without{option.WithoutShare, option.WithoutSkip}
	networks = []string{"192.0.2.0/24", "10.0.0.0/8", "10.1.0.0/16", "10.1.2.0/24", "10.1.2.3/32",
		"::ffff:10.1.0.0/112", "2001:db8::/32", "2001:db8:1::/48", "0.0.0.0/0", "::/0"}
	addresses = []string{"10.1.2.3", "10.1.2.4", "10.1.9.9", "10.9.9.9", "192.0.2.1", "::ffff:10.1.2.3",
		"64:ff9b::c000:201", "64:ff9b::a01:203", "2001:db8:1::5", "2001:db8:2::5", "2001:db9::1", ""}
)

// New returns a world of n rules. If selective is set, most rules have a path, a host, a network or a tier
// that few other rules have. Otherwise all conditions come from a few values, so that many rules match a
// request.
func New(pick Pick, n int, selective bool) *World {
	w := &World{}
	for i := 0; i < n; i++ {
		r := newRule(pick, i)
		if selective {
			narrow(pick, &r, n)
		}
		w.Rules = append(w.Rules, r)
	}
	for i := 0; i < n/4+2; i++ {
		o := newOverride(pick, w)
		o.Tier = tiers[pick(len(tiers))]
		w.Overrides = append(w.Overrides, o)
	}
	for i := pick(6); i > 0; i-- {
		b := policy.Ban{Until: pickTime(pick)}
		switch pick(3) {
		case 0:
			b.Network = netip.MustParsePrefix(networks[pick(8)])
		case 1:
			b.User = "user" + strconv.Itoa(pick(8))
		default:
			b.Digest = keyDigest(pick(8))
		}
		w.Bans = append(w.Bans, b)
	}
	for i := 0; i < 8; i++ {
		w.Identities = append(w.Identities, newIdentity(pick, w, i))
	}
	return w
}

// pickTime returns a time within two hours of Now, in microseconds since the Unix epoch, or 0.
func pickTime(pick Pick) int64 {
	if pick(3) > 0 {
		return 0
	}
	return Now.Add(time.Duration(pick(5)-2) * time.Hour).UnixMicro()
}

// pickSome returns 0 to 2 of the values.
func pickSome(pick Pick, values []string) []string {
	var picked []string
	for n := pick(4) - 1; n > 0; n-- {
		picked = append(picked, values[pick(len(values))])
	}
	return picked
}

func newRule(pick Pick, i int) policy.Rule {
	r := policy.Rule{
		Name: "r" + strconv.Itoa(i), Priority: int64(pick(6)), Hosts: pickSome(pick, hostPatterns),
		Methods: pickSome(pick, methods), Tiers: pickSome(pick, tiers),
		CountBy: countBys[pick(len(countBys))], WithoutHeader: withouts[pick(2)], Cost: int64(pick(3)),
		Message: "wait", Mode: "enforce", Action: policy.ActionLimit,
	}
	if pick(2) == 0 {
		r.Family = "family" + strconv.Itoa(pick(3))
	}
	if pick(5) == 0 { // about one rule in 8 is a shadow rule or off
		switch pick(3) {
		case 1:
			r.Mode = "shadow"
		case 2:
			r.Mode = "off"
		}
	}
	for n := pick(4) - 1; n > 0; n-- {
		r.Paths = append(r.Paths, pickPath(pick))
	}
	for n := pick(6) - 3; n > 0; n-- {
		r.Networks = append(r.Networks, netip.MustParsePrefix(networks[pick(len(networks))]))
	}
	r.From = pickTime(pick)
	r.Until = pickTime(pick)
	if r.Until <= r.From {
		r.Until = 0
	}
	if pick(12) == 0 { // about one rule in 12 blocks or exempts
		r.Action = []policy.Action{policy.ActionBlock, policy.ActionExempt}[pick(2)]
		r.Status = 451
		return r
	}
	for n := 0; n < 1+pick(2); n++ {
		r.Limits = append(r.Limits, newLimit(pick, n))
	}
	return r
}

func newLimit(pick Pick, n int) policy.RuleLimit {
	l := policy.RuleLimit{Name: "l" + strconv.Itoa(n),
		Limit: ratelimit.Limit{Events: int64(1 + pick(100)), Window: time.Minute}}
	switch pick(12) {
	case 0:
		l.Unlimited = true
	case 1:
		if pick(4) == 0 {
			l.Limit.Events = 0
		}
	case 2:
		l.Overage = true
	case 3:
		l.Limit.Algorithm = ratelimit.TokenBucket
		l.Limit.Burst = int64(1 + pick(20))
	case 4:
		l.Limit.Algorithm = ratelimit.FixedWindow
		l.Limit.Window = 0
		l.Limit.Calendar = ratelimit.Month
		l.Limit.TimeZone = []string{"", "Asia/Tokyo"}[pick(2)]
	case 5, 6, 7, 8:
		l.Unit = option.Tokens
	}
	return l
}

func pickPath(pick Pick) string {
	text := ""
	for n := pick(4); n > 0; n-- {
		if pick(6) == 0 {
			text += "/*"
		} else {
			text += "/" + words[pick(len(words))]
		}
	}
	if pick(2) == 0 {
		text += "/*"
	}
	if text == "" {
		text = "/"
	}
	return text
}

// narrow replaces a condition of a rule by one of about n selective conditions.
func narrow(pick Pick, r *policy.Rule, n int) {
	own := strconv.Itoa(pick(n))
	switch pick(10) {
	case 0:
		r.Hosts = []string{"h" + own + ".test"}
	case 1:
		r.Networks = []netip.Prefix{netip.PrefixFrom(
			netip.AddrFrom4([4]byte{172, byte(16 + pick(16)), byte(pick(256)), 0}), 24)}
	case 2:
		r.Tiers = []string{"tier" + own}
	case 3:
		r.Hosts = []string{"*.t" + own + ".test"}
	default:
		r.Paths = []string{"/c" + own + pickPath(pick)}
	}
}

func newOverride(pick Pick, w *World) policy.Override {
	o := policy.Override{Rule: "r" + strconv.Itoa(pick(len(w.Rules))), Limit: "l" + strconv.Itoa(pick(2)),
		Events: int64(1000 + pick(1000)), From: pickTime(pick), Until: pickTime(pick)}
	switch pick(8) {
	case 0:
		o.Unlimited = true
	case 1:
		o.Events = 0
	}
	return o
}

// keyDigest returns the digest of an identity's API key.
func keyDigest(identity int) string { return policy.Digest(strconv.Itoa(identity)) }

func newIdentity(pick Pick, w *World, i int) *policy.Identity {
	id := &policy.Identity{Known: pick(6) > 0, User: "user" + strconv.Itoa(pick(8)),
		Tier: tiers[pick(len(tiers))], TierUntil: pickTime(pick)}
	if pick(3) > 0 {
		id.Digest = keyDigest(i)
		id.KeyID = int64(1 + pick(8))
		id.ExpiresAt = pickTime(pick)
		id.RevokedAt = pickTime(pick)
	}
	if pick(8) == 0 {
		id.Tier = "tier" + strconv.Itoa(pick(len(w.Rules)))
	}
	if !id.Known {
		if id.KeyID == 0 {
			id.Tier = ""
		}
		return id
	}
	for n := pick(2 * (len(w.Rules)%50 + 1)); n > 0; n-- {
		o := newOverride(pick, w)
		if id.KeyID != 0 && pick(2) == 0 {
			o.KeyID = id.KeyID
		} else {
			o.User = id.User
		}
		id.Overrides = append(id.Overrides, o)
	}
	if pick(4) == 0 {
		id.PeriodStart = Now
		id.TimeZone = []string{"", "Europe/Berlin", "Nowhere/Atall"}[pick(3)]
	}
	return id
}

// Request sets f to the facts of a random request, and returns its identity and its time.
func (w *World) Request(pick Pick, f *policy.Facts) (*policy.Identity, time.Time) {
	n := len(w.Rules)
	f.DefaultTier = tiers[pick(len(tiers))]
	f.RejectUnknown = pick(2) == 0
	f.NeedsKey = pick(4) == 0
	f.Method = append(methods, "HEAD", "get")[pick(len(methods)+2)]
	f.Route = []string{"", "r1", "r2"}[pick(3)]
	f.Host = hosts[pick(len(hosts))]
	if pick(4) == 0 {
		f.Host = []string{"h", "x.t", "x.y.t"}[pick(3)] + strconv.Itoa(pick(n)) + ".test"
	}
	f.Path = ""
	if pick(2) == 0 {
		f.Path = "/c" + strconv.Itoa(pick(n))
	}
	for segments := pick(4); segments > 0; segments-- {
		f.Path += "/" + words[pick(len(words))]
	}
	if f.Path == "" {
		f.Path = "/"
	}
	if pick(3) == 0 {
		f.Path = strings.ToUpper(f.Path)
	}
	f.Address = netip.Addr{}
	if text := addresses[pick(len(addresses))]; text != "" {
		f.Address = netip.MustParseAddr(text).Unmap()
	}
	if pick(3) == 0 {
		f.Address = netip.AddrFrom4([4]byte{172, byte(16 + pick(16)), byte(pick(256)), byte(pick(256))})
	}
	f.AddressAssumed = pick(8) == 0
	f.HTTP = &http.Request{Header: http.Header{}}
	for i := pick(3); i > 0; i-- {
		f.HTTP.Header.Add("X-Tenant", "tenant"+strconv.Itoa(i))
	}
	var id *policy.Identity
	if pick(3) > 0 {
		id = w.Identities[pick(len(w.Identities))]
	}
	return id, Now.Add(time.Duration(pick(9)-4) * 45 * time.Minute)
}

// FormatVerdict returns a verdict as text.
func FormatVerdict(v *policy.Verdict) string {
	text := ""
	switch {
	case v.Exempt:
		text = "exempt " + v.Rule
	case v.Reason == policy.Blocked || v.Reason == policy.NoQuota:
		text = string(v.Reason) + " " + strconv.Itoa(v.Status) + " " + v.Rule
	case v.Refused():
		text = string(v.Reason) + " " + strconv.Itoa(v.Status)
	default:
		text = fmt.Sprintf("user %q tier %q key %d:", v.User, v.Tier, v.KeyID)
		for i := range v.Hits {
			h := &v.Hits[i]
			text += FormatHit(h, v.Terms[i])
		}
	}
	return text + FormatShadow(v)
}

// FormatHit returns a hit and its terms as text.
func FormatHit(h *ratelimit.Hit, m *policy.Terms) string {
	return fmt.Sprintf(" %s %q %d of %d burst %d anchor %d%s quota %d from %s shadow %v overage %v",
		h.Limit.Prefix, h.Key, h.Cost, h.Limit.Events, h.Limit.Burst, h.Limit.Anchor, h.Limit.TimeZone,
		m.Quota, m.AmountSource, m.Shadow, m.Overage)
}

// FormatShadow returns the effects that shadow rules without hits would have had, as text.
func FormatShadow(v *policy.Verdict) string {
	text := ""
	for _, m := range v.ShadowTerms {
		text += " would " + m.Rule + "/" + m.Limit
	}
	return text
}

// Numbers returns a Pick of numbers that depend only on the seed. It implements splitmix64.
func Numbers(seed int) Pick {
	state := uint64(seed)
	return func(n int) int {
		state += 0x9e3779b97f4a7c15
		z := state
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		z ^= z >> 31
		return int(z % uint64(n))
	}
}
