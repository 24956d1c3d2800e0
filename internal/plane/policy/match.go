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

// Decide says what the policy does with a request of an identity at a time. id is nil for a
// request with neither an API key nor a user. What o was before is lost.
//
// The frequent case is here, for the interpreter: a plan that is known, for an identity and
// an address without anything of their own. See package batch.
func Decide(s *Snapshot, f *Facts, id *Identity, now time.Time, o *Outcome) {
	if id == nil || o.written {
		decideInFull(s, f, id, now, o)
		return
	}
	known, _ := id.amounts.Load().(*amounts)
	if known == nil || known.plainFor != s {
		decideInFull(s, f, id, now, o)
		return
	}
	m := s.memo
	m.mu.RLock()
	p := m.newer[planKey{id.Tier, f.Method, f.Host, f.Path}]
	outside := m.open || m.outside[f.Address]
	m.mu.RUnlock()
	if p == nil || !p.direct || !outside || (p.timed || known.timed) && !isTimely(p, known, now) {
		decideInFull(s, f, id, now, o)
		return
	}
	o.User = id.User
	o.Tier = id.Tier
	o.KeyID = id.KeyID
	o.Rule = p.rule
	o.Counter = p.counter
	o.Marks = p.marks
	o.Would = p.would
	o.Simple = p.simple
	o.Hits = append(o.Hits[:0], p.hits...)
	for _, i := range p.byUser {
		o.Hits[i].Key = known.user
	}
}

// isTimely reports whether a plan and a plain identity hold at a time.
func isTimely(p *plan, known *amounts, now time.Time) bool {
	at := now.UnixMicro()
	return at >= p.begin && at < p.end && at < known.plainUntil
}

// clearOutcome resets the fields that few outcomes have. Code that sets one of them also sets written.
func clearOutcome(o *Outcome) {
	o.Reason = NotRefused
	o.Status = 0
	o.Message = ""
	o.RetryAfter = 0
	o.Mark = nil
	o.Ban = nil
	o.Exempt = false
	o.Unread = false
	o.certain = false
	o.depends = false
	o.written = false
}

// decideInFull is Decide in all cases.
func decideInFull(s *Snapshot, f *Facts, id *Identity, now time.Time, o *Outcome) {
	at := now.UnixMicro()
	if o.written {
		clearOutcome(o)
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
		decideUnread(s, f, id, now, o)
		return
	}
	var known *amounts
	if id != nil {
		cached, _ := id.amounts.Load().(*amounts)
		known = cached
		if known == nil || known.snapshot != s {
			known = amountsOf(s, id)
		}
		if !known.plain || known.timed {
			known = identify(f, id, known, at, o)
			if o.written {
				rejectKey(s, f, now, o)
				return
			}
		} else {
			o.User = id.User
			o.Tier = id.Tier
			o.KeyID = id.KeyID
		}
	}
	if (s.banned || known != nil && known.banned) && isBanned(s, f, id, known, now, o) {
		return
	}
	parameters := false
	if s.memo != nil {
		p := planOf(s, f, o.Tier, at)
		parameters = p.parameters
		tryRules(s.set, recalled(s, p, f, o), f, id, known, at, o)
	} else {
		parameters = strings.IndexByte(f.Path, ';') >= 0
		tryRules(s.set, indexed(s.set, s.set.tiers[o.Tier], f, o), f, id, known, at, o)
	}
	if parameters && isAmbiguous(s.set, s.set.tiers[o.Tier], f, id, known, at, o) {
		RefuseAmbiguous(o)
	}
}

// identify sets the user and the tier, and returns the amounts of the identity. If its key has
// ended or is unknown, the request is refused, or is nobody's: then it returns nil.
func identify(f *Facts, id *Identity, known *amounts, at int64, o *Outcome) *amounts {
	if known.byKey {
		reason := NotRefused
		switch {
		case !id.Known:
			reason = UnknownKey
		case at >= known.revokedAt:
			reason = KeyRevoked
		case at >= known.expiresAt:
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
	if id.Tier != "" && at < known.tierUntil {
		o.Tier = id.Tier
	}
	return known
}

// indexed returns the rules that match by the number of a tier, method, host and path, in order.
// Those that are filed under a network match by it as well.
func indexed(set *ruleSet, number int32, f *Facts, o *Outcome) []int32 {
	method := methodBit(set, f.Method)
	o.found = findRules(set, number, method, f.Host, f.Path, o.found[:0])
	if set.index.anywhere {
		if node := findNetwork(set.index.networks, f.Address); node >= 0 {
			o.found = findNetworks(set, node, number, method, f, o.found)
		}
	}
	return o.found
}

// recalled does what indexed does, with the plan for the request.
func recalled(s *Snapshot, p *plan, f *Facts, o *Outcome) []int32 {
	if s.memo.open || isOutside(s, f.Address) {
		return p.outside
	}
	o.found = append(o.found[:0], p.found...)
	addNetworks(s.set, f, o)
	return o.found
}

// addNetworks adds the rules that are filed under the address's networks.
func addNetworks(set *ruleSet, f *Facts, o *Outcome) {
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
func tryRules(set *ruleSet, found []int32, f *Facts, id *Identity, known *amounts, at int64, o *Outcome) {
	o.marks = o.marks[:0]
	o.would = o.would[:0]
	o.families = o.families[:0]
	simple := true
	unread := o.Unread
	user, key := "", "" // parts of counters' keys
	if known != nil {
		user = known.user
		key = known.key
	}
	for _, place := range found {
		r := set.rules[place]
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
		secret := r.secret
		if r.by.all {
			counter = "all"
		} else if !r.by.user {
			counter = counterKey(&r.by, f, user, key, o.Tier)
			secret = secret || countsHeader(&r.by, f.KeyHeaders)
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
			if known != nil && known.adjusted {
				a = adjust(known, id, i, a, at)
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
			o.Hits = append(o.Hits, ratelimit.Hit{Limit: a.limit, Key: counter, Cost: r.cost, Secret: secret})
			o.marks = append(o.marks, a.mark)
			simple = simple && a.mark.simple
		}
	}
	o.Marks = o.marks
	o.Would = o.would
	o.Simple = simple && len(o.marks) > 0
}

// end lets a rule that exempts or blocks be the outcome, unless it is a shadow.
func end(o *Outcome, r *rule) bool {
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
func deny(o *Outcome, r *rule, a *amount) bool {
	if r.row.Mode == Shadow {
		o.would = append(o.would, a.mark)
		return false
	}
	refuse(o, NoQuota, a.mark)
	return true
}

// refuse drops the hits and sets the answer.
func refuse(o *Outcome, reason Reason, m *Mark) {
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

// contains reports whether a network of the rule contains the request's address.
func contains(r *rule, f *Facts) bool {
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
