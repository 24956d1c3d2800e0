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
	limit       int32 // of an identity's: its index in ruleSet.limits
	tier        int32 // of a tier's: its number
	rank        int32 // of an identity's: 0 for a key, 1 for a user
	from, until int64
	amount      *amount
}

// limit is a limit of a rule, compiled.
type limit struct {
	rule     int32
	row      RuleLimit // with the prefix
	own      *amount
	tiers    []*choice // of a tier's choices, the one that begins last comes first
	periodic bool      // the windows may begin on a user's own day
}

// mostCounted is what a limit with overage counts at most: 256 requests of the largest cost. Twice as
// much fits into a bigint, because a sliding window adds two counts.
const mostCounted = 1 << 61

// newAmount is an amount of a limit. from is Mark.From.
func newAmount(r *Rule, row *RuleLimit, events, burst int64, unlimited bool, from string) (*amount, error) {
	l := row.Limit
	settle, err := ParseSettle(r.Settle)
	if err != nil {
		return nil, err
	}
	a := &amount{limit: &l, unlimited: unlimited}
	a.mark = &Mark{
		Rule: r.Name, Counter: counterOf(r), Limit: row.Name, Shadow: r.Mode == Shadow, Overage: row.Overage, Quota: events, From: from,
		Status: r.Status, Message: r.Message, RetryAfter: r.RetryAfter, Ban: r.Ban, Settle: settle,
	}
	if a.mark.Status == 0 {
		a.mark.Status = 429
	}
	a.mark.simple = !a.mark.Shadow && !a.mark.Overage && a.mark.Status == 429 && a.mark.Message == "" && a.mark.RetryAfter == 0 && settle == nil && l.Algorithm != ratelimit.InFlight
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

// amounts are the amounts of an identity under one snapshot. They do not change. An identity
// keeps those of the snapshot that used it last.
type amounts struct {
	snapshot  *Snapshot
	user, key string // parts of counters' keys
	byKey     bool   // the request had an API key

	tierUntil, expiresAt, revokedAt int64

	// plain is true if the identity has no bans, no overrides and no billing period, and if
	// neither its key nor its tier ends before plainUntil.
	plain      bool
	plainUntil int64
	timed      bool      // plainUntil is a time
	banned     bool      // the identity has bans
	plainFor   *Snapshot // the snapshot, if plain and it has a memo

	own      []*choice // in the order of their limits; a key's before a user's, then as in limit.tiers
	period   bool      // the user has an own billing period
	adjusted bool      // own or period says something
	anchored []*anchored
}

// anchored is an amount with windows that begin on the user's own day, and its base: the amount
// that it was made of.
type anchored struct{ base, amount *amount }

// amountsOf returns the amounts of an identity under a snapshot.
func amountsOf(s *Snapshot, id *Identity) *amounts {
	a := &amounts{
		snapshot: s, user: userText(id.User), byKey: id.Digest != [32]byte{},
		tierUntil: endOf(id.TierUntil), expiresAt: endOf(id.ExpiresAt), revokedAt: endOf(id.RevokedAt), period: !id.PeriodStart.IsZero(),
	}
	if id.KeyID != 0 {
		a.key = strconv.FormatInt(id.KeyID, 10)
	}
	for i := range id.Overrides {
		o := &id.Overrides[i]
		if o.Tier != "" {
			continue
		}
		// A key's override does not count for another key of its user.
		if o.KeyID != 0 && o.KeyID != id.KeyID || o.User != "" && o.User != id.User {
			continue
		}
		c, err := s.set.choose(o)
		if err != nil || c.amount == nil {
			continue
		}
		a.own = append(a.own, c)
	}
	own := a.own
	sort.SliceStable(own, func(i, j int) bool {
		if own[i].limit != own[j].limit {
			return own[i].limit < own[j].limit
		}
		if own[i].rank != own[j].rank {
			return own[i].rank < own[j].rank
		}
		return own[i].from > own[j].from
	})
	a.adjusted = a.period || len(own) > 0
	a.banned = len(id.Bans) > 0
	a.plain = !a.adjusted && !a.banned && (id.Known || !a.byKey) && id.Tier != "" && a.user != ""
	a.plainUntil = a.tierUntil
	if a.byKey && a.expiresAt < a.plainUntil {
		a.plainUntil = a.expiresAt
	}
	if a.byKey && a.revokedAt < a.plainUntil {
		a.plainUntil = a.revokedAt
	}
	a.timed = a.plainUntil != never
	if a.plain && s.memo != nil {
		a.plainFor = s
	}
	id.amounts.Store(a)
	return a
}

// choose compiles an override. The amount of the choice is nil if there is no such limit, for
// example because its rule is disabled.
func (set *ruleSet) choose(o *Override) (*choice, error) {
	c := &choice{from: beginOf(o.From), until: endOf(o.Until)}
	at, known := set.limitsByName[limitName(o.Rule, o.Limit)]
	if !known {
		return c, nil
	}
	from := "tier"
	if o.User != "" {
		from = "user"
		c.rank = 1
	}
	if o.KeyID != 0 {
		from = "key"
		c.rank = 0
	}
	l := set.limits[at]
	var err error
	c.limit = at
	c.amount, err = newAmount(&set.rules[l.rule].row, &l.row, o.Events, o.Burst, o.Unlimited, from)
	return c, err
}

// adjust returns the amount of a limit for an identity. a is the amount of the identity's
// tier.
func adjust(s *amounts, id *Identity, at int32, a *amount, now int64) *amount {
	for i := range s.own {
		c := s.own[i]
		if c.limit > at {
			break
		}
		if c.limit == at && c.from <= now && now < c.until {
			a = c.amount
			break
		}
	}
	if !s.period || !s.snapshot.set.limits[at].periodic || a.unlimited || a.none {
		return a
	}
	for i := range s.anchored {
		if s.anchored[i].base == a {
			return s.anchored[i].amount
		}
	}
	with := s.snapshot.set.anchor(a, id.PeriodStart, id.TimeZone)
	// If two goroutines do this at once, one result is lost, and is made again later.
	more := *s
	more.anchored = append(append([]*anchored(nil), s.anchored...), &anchored{a, with})
	id.amounts.Store(&more)
	return with
}

// anchorKey is what an anchored amount is made of.
type anchorKey struct {
	base     *amount
	anchor   int64
	timeZone string
}

// anchor returns an amount with windows that begin on the day of a user. Users with the same day
// and time zone share it.
func (set *ruleSet) anchor(a *amount, start time.Time, timeZone string) *amount {
	l := *a.limit
	l.Anchor = ratelimit.AnchorOn(l.Calendar, start)
	if timeZone != "" {
		l.Zone = timeZone
		if l.Validate() != nil {
			l.Zone = a.limit.Zone // this machine does not know the user's
		}
	}
	changed := &amount{limit: &l, mark: a.mark}
	if a.mark.From == "user" || a.mark.From == "key" {
		return changed // only of one identity
	}
	key := anchorKey{a, l.Anchor, l.Zone}
	set.mu.Lock()
	defer set.mu.Unlock()
	with, known := set.anchored[key]
	if !known {
		with = changed
		set.anchored[key] = with
	}
	return with
}
