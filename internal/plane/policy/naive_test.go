package policy_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// naive is the oracle: it evaluates every rule for each request, as the package comment describes.
type naive struct {
	world *policytest.World
	rules []naiveRule // in the order of their priorities
}

type naiveRule struct {
	*policy.Rule
	paths [][]string // in segments
	hosts []string   // in lower case
}

func newNaive(w *policytest.World) *naive {
	n := &naive{world: w}
	for i := range w.Rules {
		r := naiveRule{Rule: &w.Rules[i]}
		for _, p := range r.Paths {
			if p != "/" {
				p = strings.TrimSuffix(p, "/")
			}
			segments := strings.Split(p, "/")
			if strings.HasSuffix(r.Paths[len(r.paths)], "*/") {
				segments[len(segments)-1] = oneSegment
			}
			r.paths = append(r.paths, segments)
		}
		for _, h := range r.Hosts {
			r.hosts = append(r.hosts, strings.ToLower(h))
		}
		if r.Mode != option.Off {
			n.rules = append(n.rules, r)
		}
	}
	slices.SortFunc(n.rules, func(a, b naiveRule) int {
		if a.Priority != b.Priority {
			return int(b.Priority - a.Priority)
		}
		return strings.Compare(a.Name, b.Name)
	})
	return n
}

// isBanned reports whether a ban of the client's network, the API key or the user is in force.
func (n *naive) isBanned(f *policy.Facts, id *policy.Identity, now time.Time) bool {
	for _, b := range n.world.Bans {
		holds := b.Network.IsValid() && containsClient(b.Network, f.Address) ||
			id != nil &&
				(b.User != "" && b.User == id.User || b.Digest != "" && b.Digest == id.Digest)
		if holds && isValid(0, b.Until, now) {
			return true
		}
	}
	return false
}

// matching returns the rules that match a request.
func (n *naive) matching(f *policy.Facts, tier string, now time.Time) []*naiveRule {
	var rules []*naiveRule
	for i := range n.rules {
		if n.rules[i].matches(f, tier, now) {
			rules = append(rules, &n.rules[i])
		}
	}
	return rules
}

// blockOutcome returns the outcome of a request that one of the rules exempts or blocks, or "". It adds
// shadow rules to v.ShadowTerms.
func blockOutcome(rules []*naiveRule, v *policy.Verdict) string {
	for _, action := range []policy.Action{policy.ActionExempt, policy.ActionBlock} {
		for _, r := range rules {
			switch {
			case r.Action != action:
			case r.Mode == option.Shadow:
				v.ShadowTerms = append(v.ShadowTerms, &policy.Terms{Rule: r.Name})
			case action == policy.ActionExempt:
				return "exempt " + r.Name + policytest.FormatShadow(v)
			default:
				return fmt.Sprintf("blocked %d %s%s", statusOr(r.Rule, 403), r.Name,
					policytest.FormatShadow(v))
			}
		}
	}
	return ""
}

// decide returns the outcome in the form of policytest.FormatVerdict.
func (n *naive) decide(f *policy.Facts, id *policy.Identity, now time.Time) string {
	v := &policy.Verdict{Tier: f.DefaultTier}
	if n.isBanned(f, id, now) {
		return "banned 403"
	}
	if id != nil {
		byKey := id.Digest != ""
		ended := policy.NoReason
		switch {
		case byKey && !id.Known:
			ended = policy.UnknownKey
		case byKey && !isValid(0, id.RevokedAt, now):
			ended = policy.KeyRevoked
		case byKey && !isValid(0, id.ExpiresAt, now):
			ended = policy.KeyExpired
		}
		if ended != policy.NoReason && f.RejectUnknown {
			rules := slices.DeleteFunc(n.matching(f, "", now),
				func(r *naiveRule) bool { return len(r.Tiers) > 0 })
			if text := blockOutcome(rules, v); strings.HasPrefix(text, "blocked") {
				return text
			}
			return fmt.Sprintf("%s 401", ended)
		}
		if ended != policy.NoReason {
			id = nil
		} else {
			v.User, v.KeyID = id.User, id.KeyID
			if id.Tier != "" && isValid(0, id.TierUntil, now) {
				v.Tier = id.Tier
			}
		}
	}
	matching := n.matching(f, v.Tier, now)
	if text := blockOutcome(matching, v); text != "" {
		return text
	}
	if id == nil && f.NeedsKey {
		return "no_key 401"
	}
	families := make(map[string]bool)
	hits := ""
	for _, r := range matching {
		exact := r.matchesExactly(f)
		if r.Action != policy.ActionLimit || r.Family != "" && exact && families[r.Family] {
			continue
		}
		keys := naiveKeys(r.Rule, f, v)
		if keys == nil {
			continue
		}
		if r.Mode != option.Shadow && exact {
			families[r.Family] = true
		}
		for i := range len(keys) * len(r.Limits) {
			l := &r.Limits[i%len(r.Limits)]
			hit, terms := n.hitOf(r.Rule, l, id, v.Tier, now)
			if hit == nil || l.Unit == option.Tokens && slices.Contains(withoutAnswer, f.Method) {
				continue
			}
			if hit.Limit.Events == 0 {
				if r.Mode == option.Shadow {
					v.ShadowTerms = append(v.ShadowTerms, terms)
					continue
				}
				return fmt.Sprintf("no_quota %d %s%s", statusOr(r.Rule, 429), r.Name,
					policytest.FormatShadow(v))
			}
			hit.Key = keys[i/len(r.Limits)]
			hits += policytest.FormatHit(hit, terms)
		}
	}
	return fmt.Sprintf("user %q tier %q key %d:%s%s",
		v.User, v.Tier, v.KeyID, hits, policytest.FormatShadow(v))
}

// withoutAnswer has the methods of requests that get no new answer of a model.
var withoutAnswer = []string{"GET", "HEAD", "OPTIONS"}

// countsTokens reports whether a rule with a limit of tokens is for a request from any sender.
func (n *naive) countsTokens(f *policy.Facts) bool {
	return slices.ContainsFunc(n.rules, func(r naiveRule) bool {
		return r.matchesWidely(f) && r.matchesHost(f) && slices.ContainsFunc(r.Limits,
			func(l policy.RuleLimit) bool { return l.Unit == option.Tokens })
	})
}

func isValid(from, until int64, now time.Time) bool {
	return now.UnixMicro() >= from && (until == 0 || now.UnixMicro() < until)
}

func statusOr(r *policy.Rule, otherwise int) int {
	if r.Status != 0 {
		return r.Status
	}
	return otherwise
}

// contains reports whether a network contains an address. It compares bit by bit. An IPv4 address in IPv6
// form counts as IPv4, and is in no larger IPv6 network.
func contains(network netip.Prefix, address netip.Addr) bool {
	if !address.IsValid() {
		return false
	}
	bits := network.Bits()
	if network.Addr().Is4() {
		bits += 96
	}
	if (network.Addr().Unmap().Is4() && bits >= 96) != address.Unmap().Is4() {
		return false
	}
	networkBytes, addressBytes := network.Addr().As16(), address.As16()
	for i := range bits {
		if (networkBytes[i/8]^addressBytes[i/8])>>(7-i%8)&1 != 0 {
			return false
		}
	}
	return true
}

// containsClient is contains, also for the IPv4 address in an address of NAT64, unless it is private.
func containsClient(network netip.Prefix, address netip.Addr) bool {
	return contains(network, address) || contains(network, clientOf(address))
}

// clientOf returns the public IPv4 address in an address of NAT64, or the address.
func clientOf(address netip.Addr) netip.Addr {
	if !contains(netip.MustParsePrefix("64:ff9b::/96"), address) {
		return address
	}
	bytes := address.As16()
	if inner := netip.AddrFrom4([4]byte(bytes[12:])); !inner.IsPrivate() {
		return inner
	}
	return address
}

// anyMatches reports whether a condition of a rule matches. An empty list is no condition.
func anyMatches[T any](list []T, match func(T) bool) bool {
	return len(list) == 0 || slices.ContainsFunc(list, match)
}

var everyIPv4, everyIPv6 = netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")

func (r *naiveRule) matches(f *policy.Facts, tier string, now time.Time) bool {
	matchesTarget, inNetwork := r.matchesWidely, containsClient
	if r.Action == policy.ActionExempt {
		matchesTarget, inNetwork = r.matchesExactly, contains
	}
	if f.AddressAssumed && len(r.Networks) > 0 &&
		(r.Action == policy.ActionExempt || r.Action == policy.ActionLimit && r.Family != "") {
		return false
	}
	return isValid(r.From, r.Until, now) &&
		anyMatches(r.Tiers, func(t string) bool { return t == tier }) &&
		matchesTarget(f) &&
		(anyMatches(r.Networks, func(n netip.Prefix) bool { return inNetwork(n, f.Address) }) ||
			!f.Address.IsValid() && r.Action != policy.ActionExempt &&
				slices.Contains(r.Networks, everyIPv4) && slices.Contains(r.Networks, everyIPv6)) &&
		r.matchesHost(f)
}

func (r *naiveRule) matchesHost(f *policy.Facts) bool {
	return anyMatches(r.hosts, func(h string) bool {
		suffix, below := strings.CutPrefix(h, "*")
		return h == f.Host || below && strings.HasSuffix(f.Host, suffix) && f.Host != suffix
	})
}

// oneSegment stands for a wildcard before the slash at the end of a pattern: it is not a final wildcard.
const oneSegment = "/"

// pathMatches compares segments. The first segment is empty.
func pathMatches(pattern, path []string) bool {
	for i, segment := range pattern {
		if segment == "*" && i == len(pattern)-1 {
			return true
		}
		if i >= len(path) {
			return false
		}
		isWildcard := (segment == "*" || segment == oneSegment) && path[i] != ""
		if !isWildcard && segment != path[i] {
			return false
		}
	}
	return len(pattern) == len(path)
}

// hitOf returns the hit on a limit, or nil if it is unlimited. The most specific valid override sets the
// amount. Among equally specific overrides, the latest start wins. If Events is 0, no request passes.
func (n *naive) hitOf(r *policy.Rule, l *policy.RuleLimit, id *policy.Identity, tier string,
	now time.Time) (*ratelimit.Hit, *policy.Terms) {
	best := policy.Override{Events: l.Limit.Events, Unlimited: l.Unlimited, Burst: l.Limit.Burst}
	rank := 0
	overrides := n.world.Overrides
	if id != nil {
		overrides = slices.Concat(overrides, id.Overrides)
	}
	for i := range overrides {
		o := &overrides[i]
		if o.Rule != r.Name || o.Limit != l.Name || !isValid(o.From, o.Until, now) {
			continue
		}
		specificity := 0
		switch {
		case o.KeyID != 0 && id != nil && o.KeyID == id.KeyID:
			specificity = 3
		case o.User != "" && id != nil && o.User == id.User:
			specificity = 2
		case o.Tier != "" && o.Tier == tier:
			specificity = 1
		default:
			continue
		}
		if specificity > rank || specificity == rank && o.From > best.From {
			rank = specificity
			best = *o
			if best.Burst == 0 {
				best.Burst = l.Limit.Burst
			}
		}
	}
	if best.Unlimited {
		return nil, nil
	}
	limit := l.Limit
	limit.Prefix = "rule/" + r.Name + "/" + l.Name
	if r.CountedAs != "" {
		limit.CountedAs = "rule/" + r.CountedAs + "/" + l.Name
	}
	limit.Events, limit.Burst = best.Events, best.Burst
	terms := &policy.Terms{
		Rule: r.Name, Limit: l.Name, Shadow: r.Mode == option.Shadow, Overage: l.Overage,
		Quota:        limit.Capacity(),
		AmountSource: []string{"rule", "tier", "user", "key"}[rank],
	}
	if l.Overage {
		limit.Events = 1 << 61
	}
	byPerson := len(r.CountBy) == 0 || slices.ContainsFunc(r.CountBy, func(element string) bool {
		names := strings.Split(element, "|")
		// An identity with a billing period has a user, but may have no key: key|user then counts by user.
		for names[0] == "key" && len(names) > 1 {
			names = names[1:]
		}
		return names[0] == "user" || element == "key"
	})
	hasPeriod := id != nil && !id.PeriodStart.IsZero()
	if limit.Calendar == ratelimit.Month && byPerson && hasPeriod {
		limit.Anchor = int64(id.PeriodStart.Day() - 1)
		if zone, err := time.LoadLocation(id.TimeZone); err == nil && id.TimeZone != "" {
			limit.TimeZone = zone.String()
		}
	}
	hit := &ratelimit.Hit{Limit: &limit, Cost: r.Cost}
	if hit.Cost == 0 {
		hit.Cost = 1
	}
	return hit, terms
}
