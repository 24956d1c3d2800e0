package admin

import (
	"net/netip"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// A condition is found out by asking the matcher of the proxies about a rule that has only this
// condition. So there is no second definition of what matches.

// condition is a part of a rule that a request must meet.
type condition struct {
	name string
	// keep copies the condition from one rule to another, and reports whether the rule
	// has it.
	keep func(from, to *policy.Rule) bool
	// has says what the request has; "" is nothing.
	has func(f *policy.Facts, tier string) string
}

var conditions = []condition{
	{"valid", func(from, to *policy.Rule) bool {
		to.From, to.Until = from.From, from.Until
		return !from.From.IsZero() || !from.Until.IsZero()
	}, func(*policy.Facts, string) string { return "at this time" }},
	{"tiers", func(from, to *policy.Rule) bool {
		to.Tiers = from.Tiers
		return len(from.Tiers) > 0
	}, func(_ *policy.Facts, tier string) string { return tier }},
	{"networks", func(from, to *policy.Rule) bool {
		to.Networks = from.Networks
		return len(from.Networks) > 0
	}, func(f *policy.Facts, _ string) string { return addressText(f.Address) }},
	{"methods", func(from, to *policy.Rule) bool {
		to.Methods = from.Methods
		return len(from.Methods) > 0
	}, func(f *policy.Facts, _ string) string { return f.Method }},
	{"hosts", func(from, to *policy.Rule) bool {
		to.Hosts = from.Hosts
		return len(from.Hosts) > 0
	}, func(f *policy.Facts, _ string) string { return f.Host }},
	{"paths", func(from, to *policy.Rule) bool {
		to.Paths = from.Paths
		return len(from.Paths) > 0
	}, func(f *policy.Facts, _ string) string { return f.Path }},
}

// addressText is an address for people.
func addressText(address netip.Addr) string {
	if !address.IsValid() {
		return ""
	}
	return address.Unmap().String()
}

// inquiry is a request about which the matcher is asked. It is not refused for other reasons
// than the rule: no key is rejected, and nobody is banned.
type inquiry struct {
	facts policy.Facts
	id    *policy.Identity
	tier  string // as decided
	now   time.Time
}

// newInquiry is a request about which a snapshot has decided.
func newInquiry(f *policy.Facts, id *policy.Identity, now time.Time, o *policy.Outcome) *inquiry {
	q := &inquiry{facts: *f, tier: o.Tier, now: now}
	q.facts.RejectUnknown = false
	if id != nil {
		q.id = copyOf(id)
		q.id.Bans = nil
	}
	return q
}

// copyOf is a copy of an identity, which itself must not be copied after its first use.
func copyOf(id *policy.Identity) *policy.Identity {
	return &policy.Identity{
		Digest: id.Digest, Known: id.Known, KeyID: id.KeyID, User: id.User, Tier: id.Tier, TierUntil: id.TierUntil,
		PeriodStart: id.PeriodStart, TimeZone: id.TimeZone, ExpiresAt: id.ExpiresAt, RevokedAt: id.RevokedAt,
		Overrides: append([]policy.Override(nil), id.Overrides...), Bans: append([]policy.Ban(nil), id.Bans...),
	}
}

// matches reports whether a rule alone matches. The rule may be of any mode and action.
func (q *inquiry) matches(r policy.Rule) bool { return q.decide(r).Rule == r.Name }

func (q *inquiry) decide(r policy.Rule) *policy.Outcome {
	r.Mode = policy.Enforce
	r.Family = ""
	var o policy.Outcome
	policy.Decide(policy.Compile([]policy.Rule{r}, nil, nil, policyOptions), &q.facts, q.id, q.now, &o)
	return &o
}

// unmet says which conditions of a rule a request does not meet: "methods: not GET". It is ""
// if the rule matches.
func (q *inquiry) unmet(r *policy.Rule) string {
	alone := q.decide(*r)
	switch {
	case alone.Rule == r.Name:
		return ""
	case alone.Reason == policy.AmbiguousPath:
		return "paths: it depends on the parameters of " + q.facts.Path
	}
	var texts []string
	for _, c := range conditions {
		only := policy.Rule{Name: r.Name, Action: policy.Exempt}
		if c.keep(r, &only) && !q.matches(only) {
			text := "the request has none"
			if has := c.has(&q.facts, q.tier); has != "" {
				text = "not " + has
			}
			texts = append(texts, c.name+": "+text)
		}
	}
	countBy := r.CountBy
	if len(countBy) == 0 {
		countBy = []string{"user"}
	}
	for _, name := range countBy {
		if r.Action != policy.Charge {
			break
		}
		only := policy.Rule{Name: r.Name, CountBy: []string{name}, SkipWithoutHeader: r.SkipWithoutHeader, Limits: []policy.RuleLimit{{Name: "any", Limit: ratelimit.Limit{Events: 1, Window: time.Second}}}}
		if !q.matches(only) {
			texts = append(texts, "count_by: no "+name)
		}
	}
	if len(texts) == 0 {
		return "it does not match"
	}
	return strings.Join(texts, "; ")
}
