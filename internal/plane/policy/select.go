package policy

import (
	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// selectRules selects, of the matching rules, those that charge the request, and adds their hits to o.Hits
// without amounts. It skips
//
//   - a rule of a family in which an enforced rule already charges the request
//   - a rule that counts by something that the request lacks
//   - a rule that needs the sender, if the sender could not be looked up
//
// selectRules returns false if a rule exempts or blocks the request. The verdict is then complete.
func selectRules(found []*rule, f *Facts, sender *senderState, at int64, o *Verdict) bool {
	user := sender.user
	for _, r := range found {
		if r.dynamic && !matchesTimeAndNetwork(r, f, at) || o.senderUnknown && r.needsSender {
			continue
		}
		if o.Endpoint == "" && r.row.Mode != settings.Shadow {
			o.Endpoint = r.endpoint
		}
		if r.row.Action != Charge {
			if exemptOrBlock(o, r) {
				return false
			}
			continue
		}
		if r.row.Family != "" && contains(o.families, r.row.Family) {
			continue
		}
		if user == "" && r.countBy.hasUser {
			user = nobodyText(f.Address)
		}
		counter := user
		subject := ""
		secret := false
		if r.countBy.allOnly {
			counter = "all"
		} else if !r.countBy.userOnly {
			counter, secret = counterKey(&r.countBy, f, user, sender.key, o.Tier)
			if r.countBy.perSender {
				subject = user
			}
		}
		if counter == "" {
			continue
		}
		if r.row.Mode != settings.Shadow {
			if r.row.Family != "" {
				o.families = append(o.families, r.row.Family)
			}
			if o.Rule == "" {
				o.Rule = r.row.Name
			}
		}
		for range r.limits {
			o.Hits = append(o.Hits,
				ratelimit.Hit{Key: counter, Subject: subject, Cost: r.row.Cost, Secret: secret})
		}
		o.limits = append(o.limits, r.limits...)
	}
	return true
}

// exemptOrBlock completes the verdict with a rule that exempts or blocks, and returns true. It only records a
// shadow rule, and returns false.
func exemptOrBlock(o *Verdict, r *rule) bool {
	if r.row.Mode == settings.Shadow {
		o.Would = append(o.Would, r.mark)
		return false
	}
	if r.row.Action == Exempt {
		o.Exempt = true
		o.Rule = r.row.Name
	} else {
		refuse(o, Blocked, r.mark)
	}
	return true
}
