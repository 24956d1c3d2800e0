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
	if sender == nil || sender.set != s.set || sender.bans != s.bans || now.UnixMicro() >= sender.plainUntil {
		evaluateInFull(s, f, id, now, o)
		return
	}
	all := s.set.memo
	all.mu.RLock()
	m := all.matches[combination{id.Tier, f.Method, f.Host, f.Path}]
	all.mu.RUnlock()
	if m == nil || m.verdict == nil || len(s.bans.byNetwork) > 0 && networkBan(s.bans, f) != nil ||
		len(s.set.index.networks) > 0 && len(findNetworks(s.set.index, f, id.Tier, nil)) > 0 {
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
	var sender *amounts // nil: nobody's
	var ban *Ban
	reason := NotRefused
	if id != nil {
		sender = amountsOf(s, id)
		ban = sender.ban
		reason = invalid(id, sender, at)
		if reason == NotRefused {
			o.User = id.User
			o.KeyID = id.KeyID
			if id.Tier != "" && at < sender.tierUntil {
				o.Tier = id.Tier
			}
		}
	}
	if shutOut(networkBan(s.bans, f), ban, now, o) {
		return
	}
	if reason != NotRefused {
		if f.RejectUnknown {
			rejectKey(s, f, reason, at, o)
			if id.Known {
				o.Ended = id
			}
			return
		}
		sender = nil // as without a key
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
	user, key := "", "" // parts of counters' keys
	if sender != nil {
		user = sender.user
		key = sender.key
	}
	for _, r := range found {
		if at < r.from || at >= r.until || r.networks != nil && !contains(r, f) {
			continue
		}
		if o.impersonal && r.personal {
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
			if l.tiers != nil && !o.impersonal {
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

// evaluateUnknown says what the policy does with a request without an answer of the database about the sender: bans hold,
// and rules that are not personal.
func evaluateUnknown(s *Snapshot, f *Facts, id *Identity, now time.Time, o *Verdict) {
	if refuseBanned(s, f, id, now, o) {
		return
	}
	o.User = id.User
	o.impersonal = true
	decide(s.set, f, nil, now.UnixMicro(), o)
}

// refuseBanned refuses a request if it is banned. Of the sender, only the digest of the API key or the user needs to be known.
func refuseBanned(s *Snapshot, f *Facts, id *Identity, now time.Time, o *Verdict) bool {
	clearVerdict(o)
	o.Tier = f.Tier
	o.User = id.User
	return shutOut(networkBan(s.bans, f), senderBan(s.bans, id), now, o)
}

// rejectKey is the verdict on a request with an API key that is refused. If a rule blocks the request with any key, that is
// the answer: it must not depend on what is cached.
func rejectKey(s *Snapshot, f *Facts, reason Reason, at int64, o *Verdict) {
	o.impersonal = true
	decide(s.set, f, nil, at, o)
	if o.Reason == Blocked {
		return
	}
	clearVerdict(o)
	o.Tier = f.Tier
	o.Reason = reason
	o.Status = 401
}
