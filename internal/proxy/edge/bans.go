package edge

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// bans makes the bans of this process. It counts refusals in the store, in the background, so
// that all proxies count them together. The work is bounded: one Take at a time, and at most
// maxRefusals counters of refusals that wait for a Take. A ban is a row of the database. The
// policy reads the row at once.
type bans struct {
	store   ratelimit.Store
	db      pgdb.DB
	live    *policy.Policy
	by      string // the name of this proxy in the row
	onError func(error)

	mu       sync.Mutex // guards what follows
	pending  map[refusalCounter]int64
	counting bool // a goroutine counts
}

// refusalCounter names a counter of refusals.
type refusalCounter struct {
	prefix string // of the limit, or of the rule
	ban    policy.BanAfter
	sender string // see senderOf
}

const (
	maxRefusals     = 10000
	refusalsAtOnce  = 64
	countingTimeout = 5 * time.Second
)

func newBans(store ratelimit.Store, db pgdb.DB, live *policy.Policy, by string, onError func(error)) *bans {
	return &bans{store: store, db: db, live: live, by: by, onError: onError, pending: map[refusalCounter]int64{}}
}

// addRefusals adds, for bans, the refusals of a request that was not admitted.
func addRefusals(s *Site, q *Request) {
	o := &q.Verdict
	sender := senderOf(q)
	if sender == "" {
		return
	}
	b := s.Policy.Live.bans
	if o.Mark != nil && o.Mark.Ban != nil {
		b.add(RulePrefix+o.Mark.Rule, o.Mark.Ban, sender)
	}
	limitBans := q.Set.Bans
	hits := q.Hits
	decisions := q.Decisions
	last := "" // a rule counts once, however many of its limits refuse
	for i := range decisions {
		if decisions[i].Allowed || hits[i].Apart || decisions[i].Source == ratelimit.Undecided {
			continue
		}
		if i < len(limitBans) {
			if limitBans[i] != nil {
				b.add(hits[i].Limit.Prefix, limitBans[i], sender)
			}
			continue
		}
		m := o.Marks[i-len(limitBans)]
		if m.Ban != nil && m.Rule != last {
			last = m.Rule
			b.add(RulePrefix+m.Rule, m.Ban, sender)
		}
	}
}

// add adds a refusal to the pending ones.
func (b *bans) add(prefix string, ban *policy.BanAfter, sender string) {
	r := refusalCounter{prefix, *ban, sender}
	b.mu.Lock()
	defer b.mu.Unlock()
	n, known := b.pending[r]
	if !known && len(b.pending) >= maxRefusals {
		return
	}
	b.pending[r] = n + 1
	if !b.counting {
		b.counting = true
		go b.count()
	}
}

const (
	ofKey     = "key/"
	ofUser    = "user/"
	ofNetwork = "network/"
)

// senderOf is the sender of a request as bans count it: the API key, or else the user, or else the network of the address; "" if
// nothing is known of the sender. The database cannot ban a user whose name is longer than a stored key. An address that is
// assumed may be that of a balancer: people alone ban it.
func senderOf(q *Request) string {
	o := &q.Verdict
	switch {
	case o.KeyID != 0:
		return ofKey + strconv.FormatInt(o.KeyID, 10)
	case o.User != "" && len(o.User) <= ratelimit.MaxKey:
		return ofUser + o.User
	case q.Facts.Assumed:
		return ""
	}
	if network := policy.NetworkOf(q.Facts.Address); network.IsValid() {
		return ofNetwork + network.String()
	}
	return ""
}

// count counts the pending refusals, and bans. It ends when none is left.
func (b *bans) count() {
	defer b.recovered()
	for {
		refusals, counts := b.next()
		if len(refusals) == 0 {
			return
		}
		if err := b.countAll(refusals, counts); err != nil {
			b.report(fmt.Errorf("counting refusals for bans: %w", err))
		}
	}
}

// recovered ends a panic, which would end the proxy. It must be deferred.
func (b *bans) recovered() {
	if p := recover(); p != nil {
		b.mu.Lock()
		b.pending = map[refusalCounter]int64{}
		b.counting = false
		b.mu.Unlock()
		b.report(fmt.Errorf("counting refusals for bans: panic: %v", p))
	}
}

func (b *bans) report(err error) {
	if b.onError != nil {
		b.onError(err)
	}
}

// next takes some of the pending refusals. After none, the caller ends.
func (b *bans) next() ([]refusalCounter, []int64) {
	var refusals []refusalCounter
	var counts []int64
	b.mu.Lock()
	defer b.mu.Unlock()
	for r, n := range b.pending {
		if len(refusals) == refusalsAtOnce {
			break
		}
		refusals = append(refusals, r)
		counts = append(counts, n)
		delete(b.pending, r)
	}
	b.counting = len(refusals) > 0
	return refusals, counts
}

// countAll charges refusals, and bans their senders where there are too many. Without a
// decision they are not counted: while the database is down, nobody is banned.
func (b *bans) countAll(refusals []refusalCounter, counts []int64) error {
	hits := make([]ratelimit.Hit, len(refusals))
	decisions := make([]ratelimit.Decision, len(refusals))
	for i := range refusals {
		r := &refusals[i]
		hits[i] = ratelimit.Hit{
			Limit: &ratelimit.Limit{Prefix: BanPrefix + r.prefix, Algorithm: ratelimit.SlidingWindow, Events: r.ban.Refusals, Window: r.ban.Within},
			Key:   r.sender, Cost: counts[i], Apart: true,
		}
	}
	if err := b.store.Take(context.Background(), countingTimeout, hits, decisions); err != nil {
		return err
	}
	var full []ratelimit.Hit
	var banned []*refusalCounter
	for i := range decisions {
		d := &decisions[i]
		if d.Source != ratelimit.Undecided && (!d.Allowed || d.Remaining == 0) {
			full = append(full, hits[i])
			banned = append(banned, &refusals[i])
		}
	}
	if len(full) == 0 {
		return nil
	}
	if err := b.ban(banned); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), countingTimeout)
	defer cancel()
	if err := b.live.Refresh(ctx); err != nil {
		return err
	}
	// After its ban a sender begins anew.
	return b.store.Reset(context.Background(), countingTimeout, full)
}

// banSQL bans a sender, or does nothing if the sender is banned.
const banSQL = `SELECT rate_limit_ban($1::bigint * interval '1 microsecond', $2::text::cidr, $3::text, $4::bigint, $5::text, $6::text)::text`

// ban bans senders. Each ban is a transaction of its own, so that one that fails does not
// undo the others; that failure is reported.
func (b *bans) ban(refusals []*refusalCounter) error {
	statements := make([]*pgdb.Statement, len(refusals))
	for i, r := range refusals {
		var network, user, key any
		switch {
		case len(r.sender) > len(ofKey) && r.sender[:len(ofKey)] == ofKey:
			id, err := strconv.ParseInt(r.sender[len(ofKey):], 10, 64)
			if err != nil {
				return err
			}
			key = id
		case len(r.sender) > len(ofUser) && r.sender[:len(ofUser)] == ofUser:
			user = r.sender[len(ofUser):]
		default:
			network = r.sender[len(ofNetwork):]
		}
		reason := strconv.FormatInt(r.ban.Refusals, 10) + " refusals in " + r.ban.Within.String() + " by " + r.prefix
		statements[i] = &pgdb.Statement{SQL: banSQL, Args: []any{r.ban.For.Microseconds(), network, user, key, reason, b.by}}
	}
	ctx, cancel := context.WithTimeout(context.Background(), countingTimeout)
	defer cancel()
	if err := b.db.Run(ctx, statements); err != nil {
		return err
	}
	for _, s := range statements {
		if s.Err != nil {
			b.report(fmt.Errorf("banning a sender: %w", s.Err))
		}
	}
	return nil
}
