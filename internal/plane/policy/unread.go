package policy

import "time"

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
