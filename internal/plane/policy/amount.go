package policy

import (
	"sort"
	"strconv"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
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
	limit       int    // its number
	tier        string // of a tier's
	ofKey       bool   // of an identity's: of its key, and not of its user
	from, until int64
	amount      *amount
}

// limit is a limit of a rule, compiled.
type limit struct {
	number   int       // in its ruleSet
	of       *Rule     // the rule
	row      RuleLimit // with the prefix
	own      *amount
	tiers    []*choice // of a tier's choices, the one that begins last comes first
	periodic bool      // the windows may begin on a user's own day
}

// mostCounted bounds the count of a limit with overage: 256 requests of the largest cost. Twice as much fits
// into a bigint, because a sliding window adds two counts.
const mostCounted = 1 << 61

// newAmount is an amount of a limit. from is Mark.From.
func newAmount(r *Rule, row *RuleLimit, events, burst int64, unlimited bool, from string) (*amount, error) {
	l := row.Limit
	settle, err := settings.ParseSettle(r.Settle)
	if err != nil {
		return nil, err
	}
	a := &amount{limit: &l, unlimited: unlimited}
	a.mark = &Mark{
		Rule: r.Name, Limit: row.Name, Shadow: r.Mode == settings.Shadow, Overage: row.Overage,
		Quota: events, From: from,
		Status: r.Status, Message: r.Message, RetryAfter: r.RetryAfter, Settle: settle,
	}
	if a.mark.Status == 0 {
		a.mark.Status = 429
	}
	a.mark.simple = !a.mark.Shadow && !a.mark.Overage && a.mark.Status == 429 && a.mark.Message == "" &&
		a.mark.RetryAfter == 0 && settle == nil && l.Algorithm != ratelimit.InFlight
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

// newChoice compiles an override of a limit. from is Mark.From.
func newChoice(l *limit, o *Override, from string) (*choice, error) {
	a, err := newAmount(l.of, &l.row, o.Events, o.Burst, o.Unlimited, from)
	if err != nil {
		return nil, err
	}
	return &choice{
		limit: l.number, tier: o.Tier, ofKey: from == "key",
		from: beginOf(o.From), until: endOf(o.Until), amount: a,
	}, nil
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

	adjusts bool // own or period is set

	own    []*choice // a key's before a user's, then as in limit.tiers
	period *period   // the user's own billing period, or nil
}

// period is when the months and years of a user begin.
type period struct {
	anchors  map[ratelimit.Calendar]int64 // see ratelimit.Limit.Anchor
	timeZone string                       // "" is that of the limit
}

// amountsOf returns the amounts of an identity under a snapshot.
func amountsOf(s *Snapshot, id *Identity) *amounts {
	if known, _ := id.amounts.Load().(*amounts); known != nil && known.set == s.set && known.bans == s.bans {
		return known
	}
	set := s.set
	a := &amounts{
		set: set, bans: s.bans, ban: senderBan(s.bans, id), user: userText(id.User),
		byKey: id.Digest != [32]byte{}, period: periodOf(id),
		tierUntil: endOf(id.TierUntil), expiresAt: endOf(id.ExpiresAt), revokedAt: endOf(id.RevokedAt),
	}
	if id.CountedAs != 0 {
		a.key = strconv.FormatInt(id.CountedAs, 10)
	} else if id.KeyID != 0 {
		a.key = strconv.FormatInt(id.KeyID, 10)
	}
	for i := range id.Overrides {
		o := &id.Overrides[i]
		l := set.limits[limitName(o.Rule, o.Limit)]
		// A key's override does not count for another key of its user.
		if l == nil || o.Tier != "" || o.KeyID != 0 && o.KeyID != id.KeyID ||
			o.User != "" && o.User != id.User {
			continue
		}
		from := "user"
		if o.KeyID != 0 {
			from = "key"
		}
		c, err := newChoice(l, o, from)
		if err != nil {
			continue
		}
		if a.period != nil && l.periodic {
			c.amount = anchoredOn(c.amount, a.period)
		}
		a.own = append(a.own, c)
	}
	own := a.own
	sort.SliceStable(own, func(i, j int) bool {
		if own[i].ofKey != own[j].ofKey {
			return own[i].ofKey
		}
		return own[i].from > own[j].from
	})
	a.adjusts = a.own != nil || a.period != nil
	a.plainUntil = always
	if !a.adjusts && a.ban == nil && id.Tier != "" && a.user != "" && (id.Known || !a.byKey) {
		a.plainUntil = earlier(a.tierUntil, earlier(a.expiresAt, a.revokedAt))
	}
	id.amounts.Store(a)
	return a
}

func earlier(a, b int64) int64 {
	if b < a {
		return b
	}
	return a
}

// adjust returns the amount of a limit for an identity at a time. a is the amount of the identity's tier.
func adjust(s *amounts, l *limit, a *amount, at int64) *amount {
	for i := range s.own {
		c := s.own[i]
		if c.limit == l.number && c.from <= at && at < c.until {
			return c.amount
		}
	}
	if s.period == nil || !l.periodic {
		return a
	}
	// Users with the same key share the amount.
	key := anchorKey{a, s.period.anchors[a.limit.Calendar], s.period.timeZone}
	s.set.mu.RLock()
	known := s.set.anchored[key]
	s.set.mu.RUnlock()
	if known != nil {
		return known
	}
	with := anchoredOn(a, s.period)
	s.set.mu.Lock()
	s.set.anchored[key] = with
	s.set.mu.Unlock()
	return with
}

// anchorKey identifies an anchored amount.
type anchorKey struct {
	base     *amount
	anchor   int64
	timeZone string
}

// periodOf returns the billing period of an identity, or nil. For a time zone that is unknown on this
// machine, that of the limit counts.
func periodOf(id *Identity) *period {
	if id.PeriodStart.IsZero() {
		return nil
	}
	p := &period{anchors: map[ratelimit.Calendar]int64{
		ratelimit.Month: ratelimit.AnchorOn(ratelimit.Month, id.PeriodStart),
		ratelimit.Year:  ratelimit.AnchorOn(ratelimit.Year, id.PeriodStart),
	}}
	zoned := ratelimit.Limit{
		Prefix: "period", Algorithm: ratelimit.FixedWindow, Events: 1,
		Calendar: ratelimit.Month, Zone: id.TimeZone,
	}
	if zoned.Validate() == nil {
		p.timeZone = id.TimeZone
	}
	return p
}

// anchoredOn is an amount with windows that begin on the day of a user.
func anchoredOn(a *amount, p *period) *amount {
	if a.unlimited || a.none {
		return a
	}
	l := *a.limit
	l.Anchor = p.anchors[l.Calendar]
	if p.timeZone != "" {
		l.Zone = p.timeZone
	}
	return &amount{limit: &l, mark: a.mark}
}
