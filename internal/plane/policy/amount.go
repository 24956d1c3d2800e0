package policy

import (
	"sort"
	"strconv"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// amount is one amount of a limit, ready to be taken. It does not change.
type amount struct {
	limit     *ratelimit.Limit
	mark      *Mark
	unlimited bool
	none      bool // nothing passes
}

// choice is an amount that holds for some senders, for some time.
type choice struct {
	tier        string // "" of an identity's
	ofKey       bool   // of an identity's: of its key, and not of its user
	from, until int64
	amount      *amount
}

// limit is a limit of a rule, compiled.
type limit struct {
	of       *Rule     // the rule
	mark     *Mark     // of the rule
	row      RuleLimit // with the prefix
	own      *amount
	tiers    []*choice
	periodic bool // the windows may begin on a user's own day
}

// mostCounted bounds the count of a limit with overage: 256 requests of the largest cost. Twice as much fits
// into a bigint, because a sliding window adds two counts.
const mostCounted = 1 << 61

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
		a.none = !unlimited && !row.Overage
		a.mark.Quota = 0
		// The rest of the limit is checked as if it had an event, or as many as the burst:
		// the time that a full burst takes means nothing here.
		a.limit.Events = 1
		if a.limit.Burst > 1 {
			a.limit.Events = a.limit.Burst
		}
	}
	if err := a.limit.Validate(); err != nil {
		return nil, err
	}
	if row.Overage {
		// What is used beyond the quota is counted as well.
		a.limit.Events = mostCounted
	} else if !unlimited && !a.none {
		a.mark.Quota = a.limit.Capacity()
	}
	return a, nil
}

// addChoice compiles an override of a limit and adds it to choices: a key's before a user's, and the one that
// begins last first. from is Mark.From.
func addChoice(choices []*choice, l *limit, o *Override, from string) ([]*choice, error) {
	a, err := newAmount(l.mark, &l.row, o.Events, o.Burst, o.Unlimited, from)
	if err != nil {
		return choices, err
	}
	choices = append(choices, &choice{
		tier: o.Tier, ofKey: from == "key", from: beginOf(o.From), until: endOf(o.Until), amount: a,
	})
	sort.SliceStable(choices, func(i, j int) bool {
		if choices[i].ofKey != choices[j].ofKey {
			return choices[i].ofKey
		}
		return choices[i].from > choices[j].from
	})
	return choices, nil
}

// amounts belong to an identity and a snapshot. They do not change. An identity keeps those of the snapshot
// that used it last.
type amounts struct {
	set       *ruleSet
	bans      *banSet
	ban       *Ban   // of the identity, or nil; see senderBan
	user, key string // parts of counters' keys
	byKey     bool   // the request had an API key

	tierUntil, expiresAt, revokedAt int64

	// plainUntil is when the first of these ends, of an identity without a ban, overrides and a billing
	// period; else always.
	plainUntil int64

	adjusts bool // own or start is set

	own      map[*limit][]*choice
	start    time.Time // Identity.PeriodStart
	timeZone string    // Identity.TimeZone
}

// nobody has the amounts of a sender without an identity.
var nobody = &amounts{}

// amountsOf returns the amounts of an identity under a snapshot.
func amountsOf(s *Snapshot, id *Identity) *amounts {
	if known, _ := id.amounts.Load().(*amounts); known != nil && known.set == s.set && known.bans == s.bans {
		return known
	}
	set := s.set
	a := &amounts{
		set: set, bans: s.bans, ban: senderBan(s.bans, id), user: userText(id.User),
		byKey: id.Digest != [32]byte{}, own: make(map[*limit][]*choice),
		start: id.PeriodStart, timeZone: id.TimeZone,
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
		if choices, err := addChoice(a.own[l], l, o, from); err == nil {
			a.own[l] = choices
		}
	}
	a.adjusts = len(a.own) > 0 || !a.start.IsZero()
	a.plainUntil = always
	if !a.adjusts && a.ban == nil && id.Tier != "" && a.user != "" && (id.Known || !a.byKey) {
		a.plainUntil = a.tierUntil
		for _, end := range []int64{a.expiresAt, a.revokedAt} {
			if end < a.plainUntil {
				a.plainUntil = end
			}
		}
	}
	id.amounts.Store(a)
	return a
}

// amountFor returns the amount of a limit for a sender at a time.
func amountFor(l *limit, sender *amounts, at int64, o *Verdict) *amount {
	a := l.own
	if !o.impersonal {
		a = choose(l.tiers, o.Tier, at, a)
	}
	if !sender.adjusts {
		return a
	}
	a = choose(sender.own[l], "", at, a)
	if sender.start.IsZero() || !l.periodic || a.unlimited || a.none {
		return a
	}
	return anchored(sender, a)
}

// choose returns the first amount that holds at a time, or otherwise.
func choose(choices []*choice, tier string, at int64, otherwise *amount) *amount {
	for _, c := range choices {
		if c.tier == tier && c.from <= at && at < c.until {
			return c.amount
		}
	}
	return otherwise
}

// anchored returns an amount with windows that begin on the day of a user. Users with the same period share
// it.
func anchored(s *amounts, a *amount) *amount {
	l := *a.limit
	l.Anchor = ratelimit.AnchorOn(l.Calendar, s.start)
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
