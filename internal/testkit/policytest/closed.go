package policytest

import (
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
)

// IsClosed reports whether the rules refuse a request for what does not depend on who sends it: a
// ban of its network, or one rule that refuses it whatever the tier of its sender is. It asks about
// each tier in turn.
func IsClosed(s *policy.Snapshot, w *World, f *policy.Facts) bool {
	facts := *f
	facts.RejectUnknown = false
	rule := ""
	for i, tier := range append(everyTier(w), everyTier(w)...) {
		var o policy.Verdict
		id := &policy.Identity{User: "somebody", Known: true, Tier: tier}
		if i >= len(everyTier(w)) {
			id = &policy.Identity{Digest: policy.Digest("a key"), KeyID: 99, User: "somebody", Known: true, Tier: tier}
		}
		policy.Evaluate(s, &facts, id, Now, &o)
		switch {
		case !o.Refused():
			return false
		case o.Reason == policy.Banned:
			return true
		case rule != "" && rule != o.Rule || o.Reason == policy.NoQuota && !isShared(w, o.Rule):
			return false
		}
		rule = o.Rule
	}
	return true
}

// SharedHits are the hits that a request has whatever the tier of its sender is: the largest
// events of a tier, by prefix and key.
func SharedHits(s *policy.Snapshot, w *World, f *policy.Facts) map[string]int64 {
	var shared map[string]int64
	for i, tier := range append(everyTier(w), everyTier(w)...) {
		var o policy.Verdict
		// The user is another one each time, so that limits by user are not shared.
		id := &policy.Identity{User: "user of " + tier, Known: true, Tier: tier}
		if i >= len(everyTier(w)) {
			id = &policy.Identity{Digest: policy.Digest("a key"), KeyID: 99, User: id.User, Known: true, Tier: tier}
		}
		policy.Evaluate(s, f, id, Now, &o)
		hits := map[string]int64{}
		for j := range o.Hits {
			name := o.Hits[j].Limit.Prefix + " " + o.Hits[j].Key
			_, known := shared[name]
			events := shared[name]
			if known && events > o.Hits[j].Limit.Events {
				hits[name] = events
			} else if known || i == 0 {
				hits[name] = o.Hits[j].Limit.Events
			}
		}
		shared = hits
	}
	return shared
}

// isShared reports whether a rule counts by neither user, key nor tier.
func isShared(w *World, rule string) bool {
	for i := range w.Rules {
		if w.Rules[i].Name != rule {
			continue
		}
		for _, by := range w.Rules[i].CountBy {
			for _, name := range strings.Split(by, "|") {
				if name == "user" || name == "key" || name == "tier" {
					return false
				}
			}
		}
		return w.Rules[i].CountBy != nil
	}
	return false
}

// everyTier is every tier of a world, and one more.
func everyTier(w *World) []string {
	all := append([]string{"a tier of no rule"}, tiers...)
	for _, list := range tiersOf(w) {
		all = append(all, list...)
	}
	return all
}
