package admin

import (
	"net/netip"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// trial decides requests one after the other with the limits of a replay.
type trial struct {
	limits *replayLimits
	replay Replay
	passed bool // a request has passed

	counters   map[string]*trialCounter
	users      map[string]*trialUser
	identities map[sender]*policy.Identity

	verdict   policy.Verdict
	hits      []ratelimit.Hit
	rows      []*algorithm.Row
	times     []int64
	decisions []ratelimit.Decision
}

// trialCounter is a counter: its rows by index in replayLimits.limits, and what was counted.
type trialCounter struct {
	ReplayedCounter
	rows  []algorithm.Row
	carry float64 // of a sample: the part of a request that is not counted yet
}

// trialUser is how many requests of a user were, or would have been, refused.
type trialUser struct {
	name              string
	refused, replayed int64
}

// sender is what the amount of a limit depends on.
type sender struct {
	user  string
	keyID int64
	tier  string
}

func newTrial(l *replayLimits) *trial {
	return &trial{
		limits: l, replay: Replay{Weight: 1}, counters: map[string]*trialCounter{}, users: map[string]*trialUser{},
		identities: map[sender]*policy.Identity{},
	}
}

// counterOf returns the key of the counter of a rule in a row; "" if the row has none.
func counterOf(row *replayRow, prefix string) string {
	if row.prefix == prefix {
		return row.key
	}
	for i := 0; i+1 < len(row.also); i += 2 {
		if row.also[i] == prefix {
			return row.also[i+1]
		}
	}
	return ""
}

// add decides the requests of a row. prefix is that of the rule.
func (t *trial) add(row *replayRow, prefix string) {
	r := &t.replay
	if row.weight > r.Weight {
		r.Weight = row.weight
	}
	own := row.prefix == prefix
	key := counterOf(row, prefix)
	estimate := int64(float64(row.count)*row.weight + 0.5)
	switch {
	case row.decision == "shadow":
		if own {
			r.Shadow += estimate
		}
		return
	case row.decision == "allowed" && key != "":
	case row.decision == "limited" && own && key != "":
	case row.decision == "limited" && own:
		r.Unknown += estimate
		return
	case row.decision == "limited" && key != "":
		r.ByOthers += estimate
		return
	default:
		return
	}
	if r.First.IsZero() {
		r.First = row.time.UTC()
	}
	r.Last = row.time.UTC()

	c := t.counters[key]
	if c == nil {
		c = &trialCounter{ReplayedCounter{Key: strings.Clone(key)}, make([]algorithm.Row, len(t.limits.limits)), 0}
		t.counters[c.Key] = c
	}
	c.carry += float64(row.count) * row.weight
	n := int64(c.carry + 1e-9) // 100 times 0.01 is 1
	c.carry -= float64(n)
	replayed := n - t.decide(c, row, own, n)
	refused := n
	if row.decision == "allowed" {
		t.passed = true
		refused = 0
	}
	c.Requests += n
	c.Refused += refused
	c.Replayed += replayed
	c.User = nil
	if row.user == "" {
		return
	}
	u := t.users[row.user]
	if u == nil {
		u = &trialUser{name: strings.Clone(row.user)}
		t.users[u.name] = u
	}
	u.refused += refused
	u.replayed += replayed
	c.User = &u.name
}

// anyAddress is for rules that count nobody by the address. The counter itself comes from the
// row.
var anyAddress = netip.MustParseAddr("192.0.2.1")

// decide decides n equal requests of a row and returns how many pass.
func (t *trial) decide(c *trialCounter, row *replayRow, own bool, n int64) int64 {
	t.ask(row)
	if t.verdict.Refused() {
		return 0 // a limit of 0
	}
	cost := t.limits.cost
	if own && !t.limits.costIsSet && row.cost > 0 {
		cost = row.cost
	}
	now := row.time.UnixMicro()
	t.hits, t.rows, t.times = t.hits[:0], t.rows[:0], t.times[:0]
	for i, mark := range t.verdict.Marks {
		if mark.Overage {
			continue // it never refuses
		}
		hit := t.verdict.Hits[i]
		hit.Cost = cost
		t.hits = append(t.hits, hit)
		t.rows = append(t.rows, &c.rows[t.limits.index[mark.Limit]])
		t.times = append(t.times, now)
	}
	if len(t.hits) == 0 {
		return n
	}
	if len(t.hits) == 1 {
		l := t.hits[0].Limit
		if n == 0 || cost > l.Capacity() {
			return 0
		}
		return algorithm.Of(l).Take(l, t.rows[0], now, n, cost)
	}
	t.decisions = append(t.decisions[:0], make([]ratelimit.Decision, len(t.hits))...)
	for passed := int64(0); passed < n; passed++ {
		if !algorithm.Decide(t.hits, t.rows, t.times, t.decisions) {
			return passed // and so are the others: they come at the same time
		}
	}
	return n
}

// ask sets the verdict to the limits of a row, with the amounts for its user, key and tier.
func (t *trial) ask(row *replayRow) {
	s := sender{row.user, row.keyID, row.tier}
	id := t.identities[s]
	if id == nil {
		id = t.limits.identity(s)
		t.identities[s] = id
	}
	facts := policy.Facts{Tier: row.tier, Address: anyAddress}
	policy.Evaluate(t.limits.snapshot, &facts, id, time.Time{}, &t.verdict)
}
