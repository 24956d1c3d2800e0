package policy

import (
	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// selectRules adds to o.Hits the hits of those of the found rules that charge the request, without amounts. A
// rule of a family charges it unless an enforced rule of the family does. A rule that counts by something the
// request lacks does not charge it, nor does a personal rule if the sender could not be read. It returns
// false if a rule exempts or blocks the request: the verdict is then complete.
func selectRules(found []*rule, f *Facts, sender *amounts, at int64, o *Verdict) bool {
	user := sender.user
	for _, r := range found {
		if r.sometimes && !holds(r, f, at) || o.impersonal && r.personal {
			continue
		}
		if o.Endpoint == "" && r.row.Mode != settings.Shadow {
			o.Endpoint = r.endpoint
		}
		if r.row.Action != Charge {
			if end(o, r) {
				return false
			}
			continue
		}
		if r.row.Family != "" && isAmong(o.families, r.row.Family) {
			continue
		}
		if user == "" && r.by.hasUser {
			user = nobodyText(f.Address)
		}
		counter := user
		subject := ""
		secret := false
		if r.by.all {
			counter = "all"
		} else if !r.by.user {
			counter, secret = counterKey(&r.by, f, user, sender.key, o.Tier)
			if r.by.person {
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

// end completes the verdict with a rule that exempts or blocks, and returns true, unless it is a shadow rule.
func end(o *Verdict, r *rule) bool {
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
