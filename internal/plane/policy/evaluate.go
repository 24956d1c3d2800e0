package policy

import (
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// EvaluateIdentity overwrites v with the verdict on a request. id is nil for an anonymous request.
//
// EvaluateIdentity copies the verdict from the memo if the identity is plain (see senderState), and no ban or
// rule names a network of the client's address. Otherwise it calls evaluateInFull. The common case is in
// the body of this function, because calls are slow in the interpreter.
func EvaluateIdentity(s *Snapshot, f *Facts, id *Identity, now time.Time, v *Verdict) {
	var m *matches
	user := "" // of m.userHits
	if cache := s.set.memo; id != nil && cache != nil {
		state, _ := id.state.Load().(*senderState)
		if state != nil && state.snapshot == s && now.UnixMicro() < state.plainUntil {
			user = state.user
			cache.mu.RLock()
			m = cache.matches[combination{id.Tier, f.Method, f.Host, f.Path}]
			cache.mu.RUnlock()
		}
	}
	if m == nil || m.verdict == nil ||
		len(s.bans.byNetwork)+len(s.set.index.byNetwork) > 0 && namesNetwork(s, f, id.Tier) {
		evaluateInFull(s, f, id, now, v)
		return
	}
	stored := m.verdict
	*v = Verdict{User: id.User, Tier: id.Tier, KeyID: id.KeyID, Identity: id, Rule: stored.Rule,
		Endpoint: stored.Endpoint, Simple: stored.Simple, HasIndependent: stored.HasIndependent,
		Terms: append(v.Terms[:0], stored.Terms...), Hits: append(v.Hits[:0], stored.Hits...),
		ShadowTerms: append(v.ShadowTerms[:0], stored.ShadowTerms...),
		trace:       v.trace, rules: v.rules, limits: v.limits[:0], families: v.families[:0]}
	for _, i := range m.userHits {
		v.Hits[i].Key = user
	}
}

// namesNetwork reports whether a ban or a rule names a network of a request's address.
func namesNetwork(s *Snapshot, f *Facts, tier string) bool {
	return networkBan(s.bans, f) != nil || len(findByNetwork(s.set.index, f, tier, nil)) > 0
}

// evaluateInFull evaluates any request without the memo's verdicts. For Explain, it returns the state of the
// sender, and the reason why its API key is not valid, or NoReason. A request with an invalid key counts as
// anonymous.
func evaluateInFull(s *Snapshot, f *Facts, id *Identity, now time.Time, v *Verdict) (*senderState, Reason) {
	at := now.UnixMicro()
	Clear(v)
	v.Tier = f.DefaultTier
	state := anonymous
	var ban *Ban
	reason := NoReason
	if id != nil {
		own := stateOf(s, id)
		ban = own.ban
		if id.Digest != "" {
			reason = keyProblem(id, at)
		}
		switch {
		case id.unread:
			v.withoutSender = true
			v.User = id.User
		case reason == NoReason:
			state = own
			v.User = id.User
			v.KeyID = id.KeyID
			v.Identity = id
			v.Tier = tierOf(id, f, at)
		}
	}
	refusal := NoReason
	switch {
	case reason != NoReason && f.RejectUnknown:
		refusal = reason
	case (reason != NoReason || id == nil) && f.NeedsKey:
		refusal = NoKey
	}
	switch {
	case len(s.bans.byNetwork)+len(s.bans.bySender) > 0 && refuseBanned(networkBan(s.bans, f), ban, at, v):
	case refusal != NoReason:
		// A rule that blocks the request with any key takes precedence, so that the response does not depend
		// on the cache.
		v.withoutSender = refusal != NoKey
		evaluateRules(s.set, f, anonymous, at, v)
		if v.Reason != Blocked && (refusal != NoKey || !v.Exempt) { // an exempt request needs no key
			Clear(v)
			v.Tier = f.DefaultTier
			v.Reason = refusal
			v.Status = 401
		}
		if v.Refused() && id != nil && id.Known {
			v.User = id.User
			v.KeyID = id.KeyID
		}
	default:
		evaluateRules(s.set, f, state, at, v)
		if v.Identity != nil && v.Identity.Parent != nil && !v.Refused() {
			evaluateAbove(s, f, at, v)
		}
	}
	return state, reason
}

// stateOf returns the state of an identity under a snapshot.
func stateOf(s *Snapshot, id *Identity) *senderState {
	state, _ := id.state.Load().(*senderState)
	if state == nil || state.snapshot != s {
		state = newSenderState(s, id)
	}
	return state
}

// tierOf returns the tier of a user at the time at.
func tierOf(id *Identity, f *Facts, at int64) string {
	if id.Tier != "" && at < endOf(id.TierUntil) {
		return id.Tier
	}
	return f.DefaultTier
}

// evaluateAbove adds to the verdict on a request that of each user above its sender, as if that user had sent
// the request: blocks, and limits by user.
func evaluateAbove(s *Snapshot, f *Facts, at int64, v *Verdict) {
	if v.trace != nil && v.Exempt {
		v.trace.exempt = v.Rule
	}
	for a := ParentOf(v.Identity); a != nil; a = ParentOf(a) {
		one := &Verdict{User: a.User, Tier: tierOf(a, f, at), above: a.User, trace: v.trace}
		evaluateRules(s.set, f, stateOf(s, a), at, one)
		if one.Refused() {
			t := &Terms{Rule: one.Rule, Status: one.Status, Message: one.Message, RetryAfter: one.RetryAfter}
			refuse(v, one.Reason, t)
			v.Refusing = one.Refusing
			v.Level = a.User
			v.Simple = false
			v.Exempt = false
			return
		}
		if v.trace != nil {
			v.trace.addAbove(one)
		}
		if one.Rule != "" && !one.Exempt && (v.Rule == "" || v.Exempt && len(v.Hits) == 0) {
			v.Rule = one.Rule
		}
		v.ShadowTerms = append(v.ShadowTerms, one.ShadowTerms...)
		for i, t := range one.Terms {
			v.Terms = append(v.Terms, termsAt(a.User, t, v.Hits, one.Hits[i].Limit.Prefix))
			v.Hits = append(v.Hits, one.Hits[i])
		}
		v.HasIndependent = v.HasIndependent || one.HasIndependent
	}
	v.Exempt = v.Exempt && len(v.Hits) == 0
	v.Simple = len(v.Hits) > 0
	for _, t := range v.Terms {
		v.Simple = v.Simple && t.simple
	}
}

// termsAt returns the terms of a limit for a user above the sender. prefix is that of the limit, and earlier
// has the earlier hits of the request.
func termsAt(level string, t *Terms, earlier []ratelimit.Hit, prefix string) *Terms {
	own := *t
	own.Level = level
	for i := range earlier {
		own.Repeated = own.Repeated || earlier[i].Limit.Prefix == prefix
	}
	return &own
}

// evaluateRules sets v to the verdict of the rules. It refuses the request if the verdict depends on the
// parameters of the path. Before the call, v describes the sender and is otherwise empty.
func evaluateRules(set *ruleSet, f *Facts, state *senderState, at int64, v *Verdict) {
	selectRules(match(set, f, v), f, state, at, v)
	if strings.IndexByte(f.Path, ';') >= 0 && isAmbiguous(set, f, state, at, v) {
		Refuse(v, AmbiguousPath)
	}
}

// selectRules sets v to the verdict of the rules that match. It ends at a rule that exempts or blocks the
// request. Otherwise it adds the hits of the rules to v.Hits, and calls setAmounts. It skips
//
//   - a rule that takes the place of its family (see takesFamily), if an enforced rule has taken it before
//   - a rule that counts by a value that the request lacks
//   - a rule that needs the sender, if the sender could not be looked up
//   - for a user above the sender, a rule with limits that do not count by user
func selectRules(rules []*rule, f *Facts, state *senderState, at int64, v *Verdict) {
	user := state.user
	for _, r := range rules {
		if r.dynamic && !matchesNow(r, f, at) || v.withoutSender && r.needsSender {
			continue
		}
		if v.Endpoint == "" && r.row.Mode != option.Shadow {
			v.Endpoint = r.endpoint
		}
		if r.row.Action != ActionLimit {
			if exemptOrBlock(v, r) {
				return
			}
			continue
		}
		if v.above != "" && !r.countBy.hasUser {
			continue
		}
		inFamily := r.row.Family != "" && takesFamily(r, f)
		if inFamily && contains(v.families, r.row.Family) {
			continue
		}
		if user == "" && r.countBy.hasUser {
			user = anonymousText(f.Address)
		}
		var counters []string // nil for the user alone
		subject := ""
		secret := false
		if !r.countBy.userOnly {
			missing := 0
			counters, secret, missing = counterKeys(&r.countBy, f, user, state.key, v.Tier)
			if r.countBy.perSender {
				subject = user
			}
			if counters == nil {
				if refusesWithout(r, missing) {
					refuse(v, NoKey, &Terms{Rule: r.row.Name, Status: 401})
					return
				}
				continue
			}
		}
		if r.row.Mode != option.Shadow {
			if inFamily {
				v.families = append(v.families, r.row.Family)
			}
			if v.Rule == "" {
				v.Rule = r.row.Name
			}
		}
		limits := r.limits
		if r.tokens {
			limits = chargedLimits(r, f.Method)
		}
		if counters == nil {
			addHits(v, limits, &ratelimit.Hit{Key: user, Cost: r.row.Cost})
			continue
		}
		for _, counter := range counters {
			addHits(v, limits,
				&ratelimit.Hit{Key: counter, Subject: subject, Cost: r.row.Cost, Secret: secret})
		}
	}
	setAmounts(state, at, v)
}

// addHits adds a hit for each of limits.
func addHits(v *Verdict, limits []*limit, hit *ratelimit.Hit) {
	for range limits {
		v.Hits = append(v.Hits, *hit)
	}
	v.limits = append(v.limits, limits...)
}

// chargedLimits returns the limits of a rule that charge requests with a method. Limits of tokens do not
// charge the methods that get no new answer of a model.
func chargedLimits(r *rule, method string) []*limit {
	if !FreeOfTokens(method) {
		return r.limits
	}
	var limits []*limit
	for _, l := range r.limits {
		if l.tokens == nil {
			limits = append(limits, l)
		}
	}
	return limits
}

// FreeOfTokens reports whether limits of tokens charge no request with a method.
func FreeOfTokens(method string) bool {
	return method == "GET" || method == "HEAD" || method == "OPTIONS"
}

// exemptOrBlock completes the verdict with an exempt or block rule and returns true. For a shadow rule, it
// only adds the terms to v.ShadowTerms and returns false.
func exemptOrBlock(v *Verdict, r *rule) bool {
	if r.row.Mode == option.Shadow {
		v.ShadowTerms = append(v.ShadowTerms, r.terms)
		return false
	}
	if r.row.Action == ActionExempt {
		v.Exempt = true
		v.Rule = r.row.Name
	} else {
		refuse(v, Blocked, r.terms)
	}
	return true
}

// setAmounts sets the limits of the hits to the sender's amounts at the time at. It drops unlimited hits, and
// marks those of shadow rules as Independent. A limit with the amount 0 refuses the request.
func setAmounts(state *senderState, at int64, v *Verdict) {
	simple := true
	end := 0
	for i, l := range v.limits {
		a := l.own
		if l.tiers != nil || state.adjusted {
			a = amountFor(l, state, at, v)
		}
		if a.unlimited {
			if v.trace != nil {
				hit := v.Hits[i]
				hit.Limit = a.limit
				v.trace.Unlimited = append(v.trace.Unlimited, hit)
				v.trace.Terms = append(v.trace.Terms, termsAt(v.above, a.terms, nil, ""))
			}
			continue
		}
		if a.zero {
			if a.terms.Shadow {
				v.ShadowTerms = append(v.ShadowTerms, a.terms)
				continue
			}
			refuse(v, NoQuota, a.terms)
			return
		}
		if end < i {
			v.Hits[end] = v.Hits[i]
		}
		v.Hits[end].Limit = a.limit
		if a.terms.Shadow {
			v.Hits[end].Independent = true
			v.HasIndependent = true
		}
		end++
		v.Terms = append(v.Terms, a.terms)
		simple = simple && a.terms.simple
	}
	v.Hits = v.Hits[:end]
	v.Simple = simple && end > 0
}
