package policy

import (
	"net/netip"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// methodBit is the bit of a method; 0 for one that no rule mentions.
func methodBit(set *ruleSet, name string) uint64 {
	bit := set.methods[name]
	if bit == 0 {
		bit = set.methods[strings.ToUpper(name)]
	}
	return bit
}

// Evaluate says what the policy does with a request of an identity at a time. id is nil for a
// request with neither an API key nor a user. It overwrites o.
//
// The frequent case is here, for the interpreter: the memo has the matches, and neither the identity
// nor the address has anything that changes them. See package batch.
func Evaluate(s *Snapshot, f *Facts, id *Identity, now time.Time, o *Verdict) {
	if id == nil || o.written {
		evaluateInFull(s, f, id, now, o)
		return
	}
	idAmounts, _ := id.amounts.Load().(*amounts)
	if idAmounts == nil || idAmounts.plainFor != s {
		evaluateInFull(s, f, id, now, o)
		return
	}
	remembered := s.memo
	remembered.mu.RLock()
	m := remembered.newer[combination{id.Tier, f.Method, f.Host, f.Path}]
	outside := remembered.open || remembered.outside[f.Address]
	remembered.mu.RUnlock()
	if m == nil || !m.direct || !outside || (m.timed || idAmounts.timed) && !isTimely(m, idAmounts, now) {
		evaluateInFull(s, f, id, now, o)
		return
	}
	o.User = id.User
	o.Tier = id.Tier
	o.KeyID = id.KeyID
	o.Rule = m.rule
	o.Counter = m.counter
	o.Marks = m.marks
	o.Would = m.would
	o.Simple = m.simple
	o.Hits = append(o.Hits[:0], m.hits...)
	for _, i := range m.byUser {
		o.Hits[i].Key = idAmounts.user
	}
}

// isTimely reports whether matches and a plain identity hold at a time.
func isTimely(m *matches, idAmounts *amounts, now time.Time) bool {
	at := now.UnixMicro()
	return at >= m.begin && at < m.end && at < idAmounts.plainUntil
}

// clearVerdict resets the fields that few verdicts have. Code that sets one of them also sets written.
func clearVerdict(o *Verdict) {
	o.Reason = NotRefused
	o.Status = 0
	o.Message = ""
	o.RetryAfter = 0
	o.Mark = nil
	o.Ban = nil
	o.Exempt = false
	o.Ended = nil
	o.Unread = false
	o.certain = false
	o.depends = false
	o.written = false
}

// evaluateInFull is Evaluate in all cases.
func evaluateInFull(s *Snapshot, f *Facts, id *Identity, now time.Time, o *Verdict) {
	at := now.UnixMicro()
	if o.written {
		clearVerdict(o)
	}
	o.User = ""
	o.Tier = f.Tier
	o.KeyID = 0
	o.Rule = ""
	o.Counter = ""
	o.Hits = o.Hits[:0]
	o.Marks = nil
	o.Would = nil
	o.Simple = false
	if id != nil && id.Unread {
		evaluateUnread(s, f, id, now, o)
		return
	}
	var idAmounts *amounts
	if id != nil {
		cached, _ := id.amounts.Load().(*amounts)
		idAmounts = cached
		if idAmounts == nil || idAmounts.snapshot != s {
			idAmounts = amountsOf(s, id)
		}
		if !idAmounts.plain || idAmounts.timed {
			idAmounts = identify(f, id, idAmounts, at, o)
			if o.written {
				rejectKey(s, f, now, o)
				if id.Known {
					o.Ended = id
				}
				return
			}
		} else {
			o.User = id.User
			o.Tier = id.Tier
			o.KeyID = id.KeyID
		}
	}
	if (s.banned || idAmounts != nil && idAmounts.banned) && isBanned(s, f, id, idAmounts, now, o) {
		return
	}
	parameters := false
	if s.memo != nil {
		m := matchesOf(s, f, o.Tier, at)
		parameters = m.parameters
		tryRules(s.set, recalled(s, m, f, o), f, id, idAmounts, at, o)
	} else {
		parameters = strings.IndexByte(f.Path, ';') >= 0
		tryRules(s.set, indexed(s.set, s.set.tiers[o.Tier], f, o), f, id, idAmounts, at, o)
	}
	if parameters && isAmbiguous(s.set, s.set.tiers[o.Tier], f, id, idAmounts, at, o) {
		RefuseAmbiguous(o)
	}
}

// identify sets the user and the tier, and returns the amounts of the identity. If its key has
// ended or is unknown, the request is refused, or is nobody's: then it returns nil.
func identify(f *Facts, id *Identity, idAmounts *amounts, at int64, o *Verdict) *amounts {
	if idAmounts.byKey {
		reason := NotRefused
		switch {
		case !id.Known:
			reason = UnknownKey
		case at >= idAmounts.revokedAt:
			reason = KeyRevoked
		case at >= idAmounts.expiresAt:
			reason = KeyExpired
		}
		if reason != NotRefused {
			if f.RejectUnknown {
				o.Reason = reason
				o.Status = 401
				o.written = true
			}
			return nil
		}
	}
	o.User = id.User
	o.KeyID = id.KeyID
	if id.Tier != "" && at < idAmounts.tierUntil {
		o.Tier = id.Tier
	}
	return idAmounts
}

// indexed returns the rules that match by the number of a tier, method, host and path, in order.
// Those that are filed under a network match by it as well.
func indexed(set *ruleSet, number int32, f *Facts, o *Verdict) []int32 {
	method := methodBit(set, f.Method)
	o.found = findRules(set, number, method, f.Host, f.Path, o.found[:0])
	if set.index.anywhere {
		if node := findNetwork(set.index.networks, f.Address); node >= 0 {
			o.found = findNetworks(set, node, number, method, f, o.found)
		}
	}
	return o.found
}

// recalled does what indexed does, with what the memo has of the request.
func recalled(s *Snapshot, m *matches, f *Facts, o *Verdict) []int32 {
	if s.memo.open || isOutside(s, f.Address) {
		return m.outside
	}
	o.found = append(o.found[:0], m.found...)
	addNetworks(s.set, f, o)
	return o.found
}

// addNetworks adds the rules that are filed under the address's networks.
func addNetworks(set *ruleSet, f *Facts, o *Verdict) {
	if node := findNetwork(set.index.networks, f.Address); node >= 0 {
		o.found = findNetworks(set, node, set.tiers[o.Tier], methodBit(set, f.Method), f, o.found)
	}
}

// isOutside reports whether an address is in no network that a rule or a ban names.
func isOutside(s *Snapshot, address netip.Addr) bool {
	m := s.memo
	m.mu.RLock()
	outside := m.outside[address] || m.outsideBefore[address]
	m.mu.RUnlock()
	return outside || learnOutside(s, address)
}

// learnOutside remembers an address that is in no network.
func learnOutside(s *Snapshot, address netip.Addr) bool {
	outside := findNetwork(s.bans.networks, address) < 0 && findNetwork(s.set.networks, address) < 0
	if outside {
		s.memo.addOutside(address)
	}
	return outside
}

// tryRules goes through rules that may match.
func tryRules(set *ruleSet, found []int32, f *Facts, id *Identity, idAmounts *amounts, at int64, o *Verdict) {
	o.marks = o.marks[:0]
	o.would = o.would[:0]
	o.families = o.families[:0]
	simple := true
	unread := o.Unread
	user, key := "", "" // parts of counters' keys
	if idAmounts != nil {
		user = idAmounts.user
		key = idAmounts.key
	}
	for _, ruleIndex := range found {
		r := set.rules[ruleIndex]
		if at < r.from || at >= r.until || r.networks != nil && !contains(r, f) {
			continue
		}
		if unread && r.personal {
			withhold(r, f, o)
			continue
		}
		if r.row.Action != Charge {
			if end(o, r) {
				o.Would = o.would
				return
			}
			continue
		}
		if r.family != 0 && isTaken(o.families, r.family) {
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
			if r.family != 0 {
				o.families = append(o.families, r.family)
			}
			if o.Rule == "" {
				o.Rule = r.row.Name
				o.Counter = r.mark.Counter
			}
		}
		for i := r.first; i < r.end; i++ {
			l := set.limits[i]
			a := l.own
			if l.tiers != nil && unread {
				a = largestAmount(l, at)
			} else if l.tiers != nil {
				a = tierAmount(l, set.tiers[o.Tier], at)
			}
			if idAmounts != nil && idAmounts.adjusted {
				a = adjust(idAmounts, id, i, a, at)
			}
			if a.unlimited {
				if f.trace != nil {
					traceUnlimited(f.trace, r, a, counter, secret)
				}
				continue
			}
			if a.none {
				if deny(o, r, a) {
					o.Would = o.would
					return
				}
				continue
			}
			o.Hits = append(o.Hits, ratelimit.Hit{Limit: a.limit, Key: counter, Subject: subject, Cost: r.cost, Secret: secret})
			o.marks = append(o.marks, a.mark)
			simple = simple && a.mark.simple
		}
	}
	o.Marks = o.marks
	o.Would = o.would
	o.Simple = simple && len(o.marks) > 0
}

// end makes a rule that exempts or blocks the verdict, unless it is a shadow rule.
func end(o *Verdict, r *rule) bool {
	if r.row.Mode == Shadow {
		o.would = append(o.would, r.mark)
		return false
	}
	if r.row.Action == Exempt {
		o.Exempt = true
		o.Rule = r.row.Name
		o.Counter = r.mark.Counter
		o.written = true
	} else {
		refuse(o, Blocked, r.mark)
	}
	return true
}

// deny refuses because of a limit that lets nothing pass, unless its rule is a shadow.
func deny(o *Verdict, r *rule, a *amount) bool {
	if r.row.Mode == Shadow {
		o.would = append(o.would, a.mark)
		return false
	}
	refuse(o, NoQuota, a.mark)
	return true
}

// refuse drops the hits and sets the answer.
func refuse(o *Verdict, reason Reason, m *Mark) {
	o.Hits = o.Hits[:0]
	o.Rule = m.Rule
	o.Counter = m.Counter
	o.Reason = reason
	o.Mark = m
	o.Status = m.Status
	o.Message = m.Message
	o.RetryAfter = m.RetryAfter
	o.written = true
}

// contains reports whether a network of the rule contains the request's address. An assumed one, which may be that of a
// balancer, frees no request: neither from all limits, nor from those of the next rule of a family.
func contains(r *rule, f *Facts) bool {
	if f.Assumed && (r.row.Action == Exempt || r.row.Action == Charge && r.family != 0) {
		return false
	}
	address := f.Address.Unmap().WithZone("")
	for i := range r.networks {
		if r.networks[i].Contains(address) {
			return true
		}
	}
	return false
}

func isTaken(families []int32, family int32) bool {
	for _, taken := range families {
		if taken == family {
			return true
		}
	}
	return false
}

// tierAmount is the amount of a limit for a tier.
func tierAmount(l *limit, tier int32, at int64) *amount {
	for i := range l.tiers {
		c := l.tiers[i]
		if c.tier == tier && c.from <= at && at < c.until {
			return c.amount
		}
	}
	return l.own
}
