package policy

import (
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Evaluate says what the policy does with a request of an identity at a time. id is nil for a
// request with neither an API key nor a user. It overwrites o.
//
// The frequent case is here, for the interpreter: the memo has the verdict, and nothing about the identity changes it.
// Without it, such a request takes 1.3 times the processor time in Traefik: see doc.go for the benchmark.
func Evaluate(s *Snapshot, f *Facts, id *Identity, now time.Time, o *Verdict) {
	if id == nil || s.set.memo == nil {
		evaluateInFull(s, f, id, now, o)
		return
	}
	sender, _ := id.amounts.Load().(*amounts)
	if sender == nil || sender.set != s.set || now.UnixMicro() >= sender.plainUntil {
		evaluateInFull(s, f, id, now, o)
		return
	}
	all := s.set.memo
	all.mu.RLock()
	m := all.matches[combination{id.Tier, f.Method, f.Host, f.Path}]
	all.mu.RUnlock()
	if m == nil || m.verdict == nil || len(s.bans.byNetwork) > 0 && findBan(s, f, nil, now.UnixMicro()) != nil ||
		len(s.set.index.networks) > 0 && len(findNetworks(s.set.index, f, id.Tier, false, nil)) > 0 {
		evaluateInFull(s, f, id, now, o)
		return
	}
	known := m.verdict
	clearVerdict(o)
	o.User = id.User
	o.Tier = id.Tier
	o.KeyID = id.KeyID
	o.Rule = known.Rule
	o.Simple = known.Simple
	o.Marks = append(o.Marks, known.Marks...)
	o.Would = append(o.Would, known.Would...)
	o.Hits = append(o.Hits, known.Hits...)
	for _, i := range m.byUser {
		o.Hits[i].Key = sender.user
	}
}

// evaluateInFull is Evaluate in all cases.
func evaluateInFull(s *Snapshot, f *Facts, id *Identity, now time.Time, o *Verdict) {
	at := now.UnixMicro()
	clearVerdict(o)
	o.Tier = f.Tier
	if id != nil && id.Unread {
		evaluateUnread(s, f, id, now, o)
		return
	}
	var sender *amounts // nil: nobody's
	if id != nil {
		sender = amountsOf(s.set, id)
		reason := invalid(id, sender, at)
		switch {
		case reason == NotRefused:
			o.User = id.User
			o.KeyID = id.KeyID
			if id.Tier != "" && at < sender.tierUntil {
				o.Tier = id.Tier
			}
		case f.RejectUnknown:
			rejectKey(s, f, reason, now, o)
			if id.Known {
				o.Ended = id
			}
			return
		default: // as without a key
			id = nil
			sender = nil
		}
	}
	if ban := findBan(s, f, id, at); ban != nil {
		shutOut(ban, now, o)
		return
	}
	decide(s.set, f, sender, at, o)
}

// invalid returns what is wrong with the API key of an identity, or NotRefused.
func invalid(id *Identity, sender *amounts, at int64) Reason {
	switch {
	case !sender.byKey:
		return NotRefused
	case !id.Known:
		return UnknownKey
	case at >= sender.revokedAt:
		return KeyRevoked
	case at >= sender.expiresAt:
		return KeyExpired
	}
	return NotRefused
}

// decide tries the rules that match.
func decide(set *ruleSet, f *Facts, sender *amounts, at int64, o *Verdict) {
	tryRules(matching(set, f, o), f, sender, at, o)
	if strings.IndexByte(f.Path, ';') >= 0 && isAmbiguous(set, f, sender, at, o) {
		RefuseAmbiguous(o)
	}
}

// tryRules goes through rules that may match.
func tryRules(found []*rule, f *Facts, sender *amounts, at int64, o *Verdict) {
	simple := true
	unread := o.Unread
	user, key := "", "" // parts of counters' keys
	if sender != nil {
		user = sender.user
		key = sender.key
	}
	for _, r := range found {
		if at < r.from || at >= r.until || r.networks != nil && !contains(r, f) {
			continue
		}
		if unread && r.personal {
			withhold(r, f, o)
			continue
		}
		if r.row.Action != Charge {
			if end(o, r) {
				return
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
			counter, secret = counterKey(&r.by, f, user, key, o.Tier)
			if r.by.person {
				subject = user
			}
		}
		if counter == "" {
			continue
		}
		if r.row.Mode != Shadow {
			if r.row.Family != "" {
				o.families = append(o.families, r.row.Family)
			}
			if o.Rule == "" {
				o.Rule = r.row.Name
			}
		}
		for _, l := range r.limits {
			a := l.own
			if l.tiers != nil && unread {
				a = largestAmount(l, at)
			} else if l.tiers != nil {
				a = tierAmount(l, o.Tier, at)
			}
			if sender != nil && (sender.own != nil || sender.period != nil) {
				a = adjust(sender, l, a, at)
			}
			if a.unlimited {
				if f.trace != nil {
					traceUnlimited(f.trace, r, a, counter, secret)
				}
				continue
			}
			if a.none {
				if deny(o, r, a) {
					return
				}
				continue
			}
			o.Hits = append(o.Hits, ratelimit.Hit{Limit: a.limit, Key: counter, Subject: subject, Cost: r.cost, Secret: secret})
			o.Marks = append(o.Marks, a.mark)
			simple = simple && a.mark.simple
		}
	}
	o.Simple = simple && len(o.Marks) > 0
}

// end makes a rule that exempts or blocks the verdict, unless it is a shadow rule.
func end(o *Verdict, r *rule) bool {
	if r.row.Mode == Shadow {
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

// deny refuses because of a limit that lets nothing pass, unless its rule is a shadow.
func deny(o *Verdict, r *rule, a *amount) bool {
	if r.row.Mode == Shadow {
		o.Would = append(o.Would, a.mark)
		return false
	}
	refuse(o, NoQuota, a.mark)
	return true
}

// contains reports whether a network of the rule contains the request's address. An assumed one, which may be that of a
// balancer, frees no request: neither from all limits, nor from those of the next rule of a family.
func contains(r *rule, f *Facts) bool {
	if f.Assumed && (r.row.Action == Exempt || r.row.Action == Charge && r.row.Family != "") {
		return false
	}
	address := plainAddress(f.Address)
	for i := range r.networks {
		if r.networks[i].Contains(address) {
			return true
		}
	}
	return false
}

// tierAmount is the amount of a limit for a tier.
func tierAmount(l *limit, tier string, at int64) *amount {
	for i := range l.tiers {
		c := l.tiers[i]
		if c.tier == tier && c.from <= at && at < c.until {
			return c.amount
		}
	}
	return l.own
}

// unreadSender is an Identity of which nothing is known. It must not be changed.
var unreadSender = &Identity{Unread: true}

// evaluateUnread says what the policy does with a request without knowing who sends it. A ban that is
// known refuses the request, and so does a block rule without tiers, also where the sender's tier might
// be exempt. Limits hold that count by neither user, key nor tier, with the rule's own amount or
// the largest of a tier. All else is left out.
func evaluateUnread(s *Snapshot, f *Facts, id *Identity, now time.Time, o *Verdict) {
	at := now.UnixMicro()
	byKey := id.Digest != [32]byte{}
	o.Unread = true
	if ban := findBan(s, f, id, at); ban != nil {
		o.User = id.User
		o.KeyID = id.KeyID
		o.certain = ban.Network.IsValid() // else the sender is looked up once, and remembered
		shutOut(ban, now, o)
		return
	}
	if !byKey {
		o.User = id.User
	}
	o.certain = true
	decide(s.set, f, nil, at, o)
	o.depends = !o.Exempt && o.depends || byKey && f.RejectUnknown
	// For a ban, it matters who sends a request that is refused. An override may lift NoQuota.
	o.certain = o.certain && o.Reason == Blocked && o.Mark.Ban == nil
}

// withhold leaves out a rule that may not apply to the sender of a request. Rules of its family
// that come after it are left out as well.
func withhold(r *rule, f *Facts, o *Verdict) {
	if r.row.Mode == Shadow {
		return
	}
	if r.row.Action == Charge {
		counter, _ := counterKey(&r.by, f, "user", "key", "tier")
		if counter == "" || r.row.Family != "" && isAmong(o.families, r.row.Family) {
			return
		}
	}
	o.depends = true
	switch {
	case r.row.Action == Exempt:
		o.certain = false
	case r.row.Action == Charge && r.row.Family != "":
		o.families = append(o.families, r.row.Family)
	}
}

// rejectKey is the verdict on a request with an API key that is refused. If the request would be
// refused with any other key as well, that is the answer: it must not depend on what is cached.
func rejectKey(s *Snapshot, f *Facts, reason Reason, now time.Time, o *Verdict) {
	evaluateUnread(s, f, unreadSender, now, o)
	o.Unread = false
	if o.certain {
		return
	}
	clearVerdict(o)
	o.Tier = f.Tier
	o.Reason = reason
	o.Status = 401
}

// largestAmount is the largest amount of a limit for a tier that is not known.
func largestAmount(l *limit, at int64) *amount {
	a := l.own
	for _, c := range l.tiers {
		if tierAmount(l, c.tier, at) != c.amount {
			continue // another one counts for the tier
		}
		if b := c.amount; b.unlimited || !a.unlimited && !b.none && (a.none || b.limit.Events > a.limit.Events) {
			a = b
		}
	}
	return a
}
