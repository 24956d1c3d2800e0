package policy

import (
	"sort"
	"strconv"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// limit is a compiled RuleLimit.
type limit struct {
	rule     *rule
	row      RuleLimit          // with the prefix
	own      *amount            // from the rule
	tiers    []*amount          // from the overrides for tiers
	tokens   *option.CostSource // nil if the limit counts requests
	periodic bool               // the windows follow the billing period of a user
}

// amount is a limit with the amount of its rule or of an Override. It is immutable.
type amount struct {
	limit     *ratelimit.Limit
	terms     *Terms
	unlimited bool
	zero      bool // no request passes

	tier        string // the tier of an override, or ""
	from, until int64  // when the override is valid, in microseconds; until is exclusive
}

// MaxCount is the quota that the store gets for a limit with overage, so that it counts beyond the real
// quota. It is 256 times the largest cost. Twice MaxCount fits into a bigint, as a sliding window requires,
// because it adds two counts.
const MaxCount = 1 << 61

// newAmount compiles the amount of a limit from an override, or from the limit itself in the form of an
// override.
func newAmount(l *limit, o *Override) (*amount, error) {
	quota := l.row.Limit
	terms := *l.rule.terms
	a := &amount{limit: &quota, terms: &terms, unlimited: o.Unlimited, tier: o.Tier, from: o.From,
		until: endOf(o.Until)}
	terms.Limit = l.row.Name
	terms.Overage = l.row.Overage
	terms.Hidden = l.row.Hidden
	terms.Notify = l.row.Notify
	terms.Quota = o.Events
	switch {
	case o.KeyID != 0:
		terms.AmountSource = "key"
	case o.User != "":
		terms.AmountSource = "user"
	case o.Tier != "":
		terms.AmountSource = "tier"
	}
	if l.tokens != nil {
		terms.CostSource = l.tokens
	}
	terms.simple = !terms.Shadow && !terms.Overage && terms.Status == 429 && terms.Message == "" &&
		terms.RetryAfter == 0 && terms.CostSource == nil && !terms.Hidden && terms.Notify == nil &&
		quota.Algorithm != ratelimit.InFlight
	if o.Burst > 0 {
		quota.Burst = o.Burst
	}
	quota.Events = o.Events
	if o.Unlimited || o.Events == 0 {
		a.zero = !o.Unlimited && !terms.Overage
		terms.Quota = 0
		terms.Notify = nil
		// Validate needs events, and refuses a burst that takes too long to refill.
		quota.Events = 1
		if quota.Burst > 1 {
			quota.Events = quota.Burst
		}
	}
	if err := quota.Validate(); err != nil {
		return nil, err
	}
	if terms.Overage {
		// The store counts beyond the quota.
		quota.Events = MaxCount
	} else if !o.Unlimited && !a.zero {
		terms.Quota = quota.Capacity()
	}
	return a, nil
}

// addOverride adds the amount of an override to its limit's amounts in byLimit. It ignores the override if
// the set does not have the limit, for example because the rule is disabled. Amounts for a key come before
// amounts for a user. Of the same kind, the amount with the later start comes first.
func (set *ruleSet) addOverride(byLimit map[*limit][]*amount, o *Override) error {
	l := set.limits[prefixOf(o.Rule, o.Limit)]
	if l == nil {
		return nil
	}
	a, err := newAmount(l, o)
	if err != nil {
		return err
	}
	byLimit[l] = append(byLimit[l], a)
	amounts := byLimit[l]
	sort.SliceStable(amounts, func(i, j int) bool {
		if amounts[i].terms.AmountSource != amounts[j].terms.AmountSource {
			return amounts[i].terms.AmountSource == "key"
		}
		return amounts[i].from > amounts[j].from
	})
	return nil
}

// senderState holds the effect of a snapshot on an identity: bans, ends and overrides. It is immutable. An
// Identity caches the state for the snapshot that used it last.
type senderState struct {
	snapshot  *Snapshot
	ban       *Ban   // of the ones of its key, its user and those above, the one that ends last; or nil
	user, key string // as in the keys of counters

	// A plain sender has a tier and a user, but no ban, overrides or billing period, and gets the memo's
	// verdict. plainUntil is the time at which the tier or the API key of a plain sender ends. 0 means that
	// the sender is not plain.
	plainUntil int64

	adjusted bool // overrides or periodStart is set

	overrides   map[*limit][]*amount
	periodStart time.Time // Identity.PeriodStart
	timeZone    string    // Identity.TimeZone
}

// anonymous is the state of a sender without an identity.
var anonymous = &senderState{}

// newSenderState returns the state of an identity under a snapshot, and caches it in the identity.
func newSenderState(s *Snapshot, id *Identity) *senderState {
	state := &senderState{
		snapshot: s, user: userText(CountsAs(id.User, id.UserCountedAs)), overrides: map[*limit][]*amount{},
		periodStart: id.PeriodStart, timeZone: id.TimeZone,
	}
	for a := ParentOf(id); a != nil; a = ParentOf(a) {
		state.ban = lastBan(state.ban, s.bans.bySender[Credential{User: a.User}])
	}
	// The own ban may be that of a user above, as bannedKeysSQL returns it.
	state.ban = lastBan(state.ban, s.bans.bySender[Credential{Digest: id.Digest}])
	state.ban = lastBan(state.ban, s.bans.bySender[Credential{User: id.User}])
	countedAs := id.CountedAs
	if countedAs == 0 {
		countedAs = id.KeyID
	}
	if countedAs != 0 {
		state.key = strconv.FormatInt(countedAs, 10)
	}
	for i := range id.Overrides {
		_ = s.set.addOverride(state.overrides, &id.Overrides[i]) // an invalid override has no effect
	}
	state.adjusted = len(state.overrides) > 0 || !state.periodStart.IsZero()
	if !state.adjusted && state.ban == nil && id.Parent == nil && id.Tier != "" && state.user != "" &&
		(id.Known || id.Digest == "") {
		state.plainUntil = noEnd
		for _, end := range []int64{id.TierUntil, id.ExpiresAt, id.RevokedAt} {
			if end != 0 && end < state.plainUntil {
				state.plainUntil = end
			}
		}
	}
	id.state.Store(state)
	return state
}

// amountFor returns the amount of a limit for a sender at the time at.
func amountFor(l *limit, state *senderState, at int64, v *Verdict) *amount {
	a := l.own
	if !v.withoutSender {
		a = choose(l.tiers, v.Tier, at, a)
	}
	if !state.adjusted {
		return a
	}
	a = choose(state.overrides[l], "", at, a)
	if state.periodStart.IsZero() || !l.periodic || a.unlimited || a.zero {
		return a
	}
	return anchored(state, a)
}

// choose returns the first amount for a tier that is valid at the time at. If there is none, it returns
// fallback.
func choose(amounts []*amount, tier string, at int64, fallback *amount) *amount {
	for _, a := range amounts {
		if a.tier == tier && a.from <= at && at < a.until {
			return a
		}
	}
	return fallback
}

// anchored returns an amount with windows that begin on the sender's billing day. Users with the same period
// share the result.
func anchored(s *senderState, a *amount) *amount {
	l := *a.limit
	l.Anchor = ratelimit.AnchorOn(l.Calendar, s.periodStart)
	if s.timeZone != "" {
		l.TimeZone = s.timeZone
	}
	key := anchorKey{l, a.terms.Quota, a.terms.AmountSource}
	set := s.snapshot.set
	set.mu.Lock()
	defer set.mu.Unlock()
	shared := set.anchored[key]
	if shared == nil {
		if l.Validate() != nil { // the time zone is unknown on this machine
			l.TimeZone = a.limit.TimeZone
		}
		shared = &amount{limit: &l, terms: a.terms}
		set.anchored[key] = shared
	}
	return shared
}

// anchorKey identifies an anchored amount.
type anchorKey struct {
	limit ratelimit.Limit
	quota int64  // Terms.Quota
	from  string // Terms.AmountSource
}
