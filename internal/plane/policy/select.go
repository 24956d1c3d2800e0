package policy

import (
	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// selectRules selects the matching rules that charge the request. It adds their hits to v.Hits without
// amounts. It skips
//
//   - a rule of a family in which an enforced rule already charges the request
//   - a rule that counts by a value that the request lacks
//   - a rule that needs the sender, if the sender could not be looked up
//
// selectRules returns false if a rule exempts or blocks the request, and the verdict is then complete.
func selectRules(found []*rule, f *Facts, sender *senderState, at int64, v *Verdict) bool {
	user := sender.user
	for _, r := range found {
		if r.dynamic && !matchesTimeAndNetwork(r, f, at) || v.senderUnknown && r.needsSender {
			continue
		}
		if v.Endpoint == "" && r.row.Mode != settings.Shadow {
			v.Endpoint = r.endpoint
		}
		if r.row.Action != Charge {
			if exemptOrBlock(v, r) {
				return false
			}
			continue
		}
		if r.row.Family != "" && contains(v.families, r.row.Family) {
			continue
		}
		if user == "" && r.countBy.hasUser {
			user = anonymousText(f.Address)
		}
		counter := user
		subject := ""
		secret := false
		if r.countBy.allOnly {
			counter = "all"
		} else if !r.countBy.userOnly {
			counter, secret = counterKey(&r.countBy, f, user, sender.key, v.Tier)
			if r.countBy.perSender {
				subject = user
			}
		}
		if counter == "" {
			continue
		}
		if r.row.Mode != settings.Shadow {
			if r.row.Family != "" {
				v.families = append(v.families, r.row.Family)
			}
			if v.Rule == "" {
				v.Rule = r.row.Name
			}
		}
		for range r.limits {
			v.Hits = append(v.Hits,
				ratelimit.Hit{Key: counter, Subject: subject, Cost: r.row.Cost, Secret: secret})
		}
		v.limits = append(v.limits, r.limits...)
	}
	return true
}

// exemptOrBlock completes the verdict with an exempt or block rule and returns true. For a shadow rule, it
// only adds the mark to v.Would and returns false.
func exemptOrBlock(v *Verdict, r *rule) bool {
	if r.row.Mode == settings.Shadow {
		v.Would = append(v.Would, r.mark)
		return false
	}
	if r.row.Action == Exempt {
		v.Exempt = true
		v.Rule = r.row.Name
	} else {
		refuse(v, Blocked, r.mark)
	}
	return true
}
