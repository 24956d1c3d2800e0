package admin

import (
	"context"
	"sort"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// stateColumns are a counter as an algorithm.Row has it, and the time of the server.
const stateColumns = `c.prefix, c.key, c.durable, c.count, c.prev_count, c.window_start, c.tokens, c.last_refill, c.remainder, c.hits, c.slots, c.expires_at, now()`

// stateRow is what stateColumns need of a table of counts.
var stateRow = `{durable} AS durable, c.prefix, c.key, coalesce(c.count, 0) AS count, coalesce(c.prev_count, 0) AS prev_count, c.window_start, c.tokens, c.last_refill,
	coalesce(c.remainder, 0) AS remainder, c.hits, ` + slotsSQL + ` AS slots, c.expires_at`

// slotsSQL is how many slots of a counter requests in flight hold.
var slotsSQL = algorithm.Of(&ratelimit.Limit{Algorithm: ratelimit.InFlight}).SQL.Looked

// counterState has stateColumns.
type counterState struct {
	Prefix, Key      string
	Durable          bool
	Count, PrevCount int64
	Start            *time.Time
	Tokens           *float64
	Refill           *time.Time
	Remainder        int64
	Hits             []time.Time
	Slots            int64
	Expires, Now     time.Time
}

// microseconds is a time of the server; 0 is NULL.
func microseconds(t *time.Time) int64 {
	if t == nil {
		return 0
	}
	return t.UnixMicro()
}

// used is how much of a limit the counter has used, by the definition of the algorithm.
func (c *counterState) used(l *ratelimit.Limit) Usage {
	r := algorithm.Row{Count: max(c.Count, 0), PrevCount: max(c.PrevCount, 0), Start: microseconds(c.Start), Refill: microseconds(c.Refill), Remainder: c.Remainder, Slots: c.Slots, Expires: c.Expires.UnixMicro()}
	if c.Tokens != nil {
		r.Tokens, r.HasTokens = *c.Tokens, true
	}
	for _, hit := range c.Hits {
		r.Hits = append(r.Hits, hit.UnixMicro())
	}
	free, reset := algorithm.Of(l).Look(l, &r, c.Now.UnixMicro())
	quota := l.Capacity()
	u := Usage{Rule: l.Prefix, Key: c.Key, Algorithm: l.Algorithm.String(), Used: max(quota-free, 0), Quota: &quota}
	percent := 100 * float64(u.Used) / float64(max(quota, 1))
	u.Percent = &percent
	if at := time.UnixMicro(reset).UTC(); at.After(c.Now) && l.Algorithm != ratelimit.InFlight { // nobody knows when requests end
		u.Resets = &at
	}
	return u
}

// NearLimits returns the counters of limits of configurations of which at least a share, in percent, is used, the
// highest share first. It looks at the counters of each prefix that have counted most, at most so many. In a Usage,
// Rule is the prefix.
func (d *Database) NearLimits(ctx context.Context, limits []*ratelimit.Limit, percent float64, most int) ([]Usage, error) {
	all, err := d.states(ctx, limits, `SELECT c.* FROM (SELECT DISTINCT unnest($1::text[]) AS prefix) AS p
CROSS JOIN LATERAL (SELECT `+stateRow+` FROM {table} AS c WHERE c.prefix = p.prefix AND c.expires_at > now() `+mostFirst+` LIMIT $2::bigint) AS c`, "", int64(most))
	near := []Usage{}
	for _, u := range all {
		if *u.Percent >= percent {
			near = append(near, u)
		}
	}
	sort.SliceStable(near, func(i, j int) bool { return *near[i].Percent > *near[j].Percent })
	return near, err
}

// UsedOf returns how much is used of limits of configurations for a key, as it is given or as it is stored. In a
// Usage, Rule is the prefix.
func (d *Database) UsedOf(ctx context.Context, limits []*ratelimit.Limit, key string) ([]Usage, error) {
	return d.states(ctx, limits, `SELECT `+stateRow+` FROM {table} AS c WHERE c.prefix = ANY ($1::text[])
	AND c.key = ANY (ARRAY(SELECT number || own.key FROM `+alternatives+`, unnest($2::text[]) AS own(key)))`, " ORDER BY c.prefix, c.key", storedKeys(key))
}

// InFlight returns how many requests are in flight by the prefix of a limit that counts them, all keys together.
func (d *Database) InFlight(ctx context.Context, prefixes []string) (map[string]int64, error) {
	running := map[string]int64{}
	if len(prefixes) == 0 {
		return running, nil
	}
	counts, err := d.counts(ctx, "SELECT c.prefix, "+slotsSQL+" AS slots FROM {table} AS c WHERE c.prefix = ANY ($1::text[])")
	if err != nil {
		return running, err
	}
	found, err := rows[struct {
		Prefix string
		Slots  int64
	}](ctx, d, "SELECT c.prefix, sum(c.slots)::bigint FROM "+counts+" GROUP BY c.prefix", prefixes)
	for _, f := range found {
		running[f.Prefix] = f.Slots
	}
	return running, err
}

// states returns the counters that a query finds for the prefixes of limits, in an order, as these limits see them.
func (d *Database) states(ctx context.Context, limits []*ratelimit.Limit, query, order string, arg any) ([]Usage, error) {
	used := []Usage{}
	if len(limits) == 0 {
		return used, nil
	}
	prefixes := make([]string, len(limits))
	for i, l := range limits {
		prefixes[i] = l.Prefix
	}
	counts, err := d.counts(ctx, query)
	if err != nil {
		return used, err
	}
	found, err := rows[counterState](ctx, d, "SELECT "+stateColumns+" FROM "+counts+order, prefixes, arg)
	for i := range found {
		for _, l := range limits {
			if c := &found[i]; l.Prefix == c.Prefix && l.Durable == c.Durable {
				if u := c.used(l); u.Used > 0 {
					used = append(used, u)
				}
			}
		}
	}
	return used, err
}
