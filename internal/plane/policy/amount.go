package policy

import (
	"sort"
	"strconv"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// amount is a limit with one of its amounts. It is immutable.
type amount struct {
	limit     *ratelimit.Limit
	mark      *Mark
	unlimited bool
	zero      bool // no request passes
}

// choice is the compiled Override of a limit. It holds from from until until, in microseconds.
type choice struct {
	tier        string // "" for an override of an identity
	forKey      bool   // overrides for the API key of an identity, not for its user
	from, until int64
	amount      *amount
}

// limit is a compiled RuleLimit.
type limit struct {
	rule      *Rule
	mark      *Mark     // the rule's
	row       RuleLimit // with the prefix
	ownAmount *amount
	tiers     []*choice
	periodic  bool // the windows follow the billing period of a user
}

// maxCount bounds the count of a limit with overage. It is 256 times the largest cost, and twice maxCount
// fits into a bigint, because a sliding window adds two counts.
const maxCount = 1 << 61

// newAmount compiles an amount of a limit. from is Mark.From.
func newAmount(
	rule *Mark, row *RuleLimit, events, burst int64, unlimited bool, from string,
) (*amount, error) {
	l := row.Limit
	mark := *rule
	a := &amount{limit: &l, mark: &mark, unlimited: unlimited}
	a.mark.Limit = row.Name
	a.mark.Overage = row.Overage
	a.mark.Quota = events
	a.mark.From = from
	a.mark.simple = !a.mark.Shadow && !a.mark.Overage && a.mark.Status == 429 && a.mark.Message == "" &&
		a.mark.RetryAfter == 0 && a.mark.Settle == nil && l.Algorithm != ratelimit.InFlight
	if burst > 0 {
		a.limit.Burst = burst
	}
	a.limit.Events = events
	if unlimited || events == 0 {
		a.zero = !unlimited && !row.Overage
		a.mark.Quota = 0
		// Validate needs events, and refuses a burst that takes too long to refill.
		a.limit.Events = 1
		if a.limit.Burst > 1 {
			a.limit.Events = a.limit.Burst
		}
	}
	if err := a.limit.Validate(); err != nil {
		return nil, err
	}
	if row.Overage {
		// The store counts beyond the quota.
		a.limit.Events = maxCount
	} else if !unlimited && !a.zero {
		a.mark.Quota = a.limit.Capacity()
	}
	return a, nil
}

// addChoice compiles an override of a limit and adds it to choices. Overrides for keys come before those for
// users, and later beginnings come first. from is Mark.From.
func addChoice(choices []*choice, l *limit, o *Override, from string) ([]*choice, error) {
	a, err := newAmount(l.mark, &l.row, o.Events, o.Burst, o.Unlimited, from)
	if err != nil {
		return choices, err
	}
	choices = append(choices, &choice{
		tier: o.Tier, forKey: from == "key", from: beginOf(o.From), until: endOf(o.Until), amount: a,
	})
	sort.SliceStable(choices, func(i, j int) bool {
		if choices[i].forKey != choices[j].forKey {
			return choices[i].forKey
		}
		return choices[i].from > choices[j].from
	})
	return choices, nil
}

// senderState holds what a snapshot says about an identity: bans, ends and overrides. It is immutable. An
// Identity caches the state for the snapshot that used it last.
type senderState struct {
	set       *ruleSet
	bans      *banSet
	ban       *Ban   // nil for none; see senderBan
	user, key string // as in the keys of counters
	hasKey    bool   // the request had an API key

	tierUntil, expiresAt, revokedAt int64

	// plainUntil is the first of these ends, until which the sender is plain: the memo's verdict holds for an
	// identity with a tier and a user, and without a ban, overrides and a billing period. It is always for
	// any other identity.
	plainUntil int64

	adjusted bool // overrides or periodStart is set

	overrides   map[*limit][]*choice
	periodStart time.Time // Identity.PeriodStart
	timeZone    string    // Identity.TimeZone
}

// anonymous is the state of a sender without an identity.
var anonymous = &senderState{}

// senderStateOf returns the state of an identity under a snapshot, from the identity's cache if possible.
func senderStateOf(s *Snapshot, id *Identity) *senderState {
	last, _ := id.state.Load().(*senderState)
	if last != nil && last.set == s.set && last.bans == s.bans {
		return last
	}
	set := s.set
	a := &senderState{
		set: set, bans: s.bans, ban: senderBan(s.bans, id), user: userText(id.User),
		hasKey: id.Digest != [32]byte{}, overrides: make(map[*limit][]*choice),
		periodStart: id.PeriodStart, timeZone: id.TimeZone,
		tierUntil: endOf(id.TierUntil), expiresAt: endOf(id.ExpiresAt), revokedAt: endOf(id.RevokedAt),
	}
	if id.CountedAs != 0 {
		a.key = strconv.FormatInt(id.CountedAs, 10)
	} else if id.KeyID != 0 {
		a.key = strconv.FormatInt(id.KeyID, 10)
	}
	for i := range id.Overrides {
		o := &id.Overrides[i]
		l := set.limits[prefixOf(o.Rule, o.Limit)]
		if l == nil {
			continue
		}
		from := "user"
		if o.KeyID != 0 {
			from = "key"
		}
		if choices, err := addChoice(a.overrides[l], l, o, from); err == nil {
			a.overrides[l] = choices
		}
	}
	a.adjusted = len(a.overrides) > 0 || !a.periodStart.IsZero()
	a.plainUntil = always
	if !a.adjusted && a.ban == nil && id.Tier != "" && a.user != "" && (id.Known || !a.hasKey) {
		a.plainUntil = a.tierUntil
		for _, end := range []int64{a.expiresAt, a.revokedAt} {
			if end < a.plainUntil {
				a.plainUntil = end
			}
		}
	}
	id.state.Store(a)
	return a
}

// amountFor returns the amount of a limit for a sender at a time.
func amountFor(l *limit, sender *senderState, at int64, o *Verdict) *amount {
	a := l.ownAmount
	if !o.senderUnknown {
		a = choose(l.tiers, o.Tier, at, a)
	}
	if !sender.adjusted {
		return a
	}
	a = choose(sender.overrides[l], "", at, a)
	if sender.periodStart.IsZero() || !l.periodic || a.unlimited || a.zero {
		return a
	}
	return anchored(sender, a)
}

// choose returns the first amount for a tier that holds at a time, or otherwise if there is none.
func choose(choices []*choice, tier string, at int64, otherwise *amount) *amount {
	for _, c := range choices {
		if c.tier == tier && c.from <= at && at < c.until {
			return c.amount
		}
	}
	return otherwise
}

// anchored returns an amount with windows that begin on the sender's billing day. Users with the same period
// share the result.
func anchored(s *senderState, a *amount) *amount {
	l := *a.limit
	l.Anchor = ratelimit.AnchorOn(l.Calendar, s.periodStart)
	if s.timeZone != "" {
		l.Zone = s.timeZone
	}
	key := anchorKey{l, a.mark.Quota, a.mark.From}
	s.set.mu.Lock()
	defer s.set.mu.Unlock()
	known := s.set.anchored[key]
	if known == nil {
		if l.Validate() != nil { // the time zone is unknown on this machine
			l.Zone = a.limit.Zone
		}
		known = &amount{limit: &l, mark: a.mark}
		s.set.anchored[key] = known
	}
	return known
}

// anchorKey identifies an anchored amount.
type anchorKey struct {
	limit ratelimit.Limit
	quota int64  // Mark.Quota
	from  string // Mark.From
}
