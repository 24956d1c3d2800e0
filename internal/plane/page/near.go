package page

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

// nearSection are the counters above a share of their quotas, as of a time; nil: nobody has looked yet.
type nearSection struct {
	Looked   *time.Time    `json:"looked"`
	Remark   *string       `json:"note"`
	Counters []admin.Usage `json:"counters"`
}

// readNear finds who is above 80 % of a quota.
func (c *collector) readNear(ctx context.Context, db *admin.Database) error {
	const percent = 80
	began := time.Now()
	near := nearSection{Counters: []admin.Usage{}}
	note := func(text string) { near.Remark = &text }
	exists, err := db.HasPolicy(ctx)
	if c.pools.dsns[ofPolicy] != c.pools.dsns[ofCounters] {
		note("What is used of the limits of rules is not known here, because the policy is in another database than the counters.")
	} else if exists {
		var rules []admin.Usage
		rules, err = db.Top(ctx, "", mostNear)
		near.Counters = append(near.Counters, slices.DeleteFunc(rules, func(u admin.Usage) bool { return *u.Percent < percent })...)
	}
	if err != nil {
		return err
	}
	limits := c.limits()
	flights, err := db.InFlight(ctx, limits)
	if err != nil {
		return err
	}
	found, err := db.NearLimits(ctx, limits, percent, mostNear)
	if err != nil {
		return err
	}
	near.Counters = append(near.Counters, found...)
	slices.SortStableFunc(near.Counters, func(a, b admin.Usage) int { return cmp.Compare(*b.Percent, *a.Percent) })
	near.Counters = near.Counters[:min(len(near.Counters), mostNear)]
	if wait := share * time.Since(began); wait > 5*time.Second {
		note("There are too many counters to look at all the time: they are looked at every " + span(wait) + ".")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	looked := c.now.UTC()
	near.Looked = &looked
	c.near, c.flights = near, map[string]int64{}
	for _, f := range flights {
		c.flights[f.Prefix] = f.Requests
	}
	return nil
}
