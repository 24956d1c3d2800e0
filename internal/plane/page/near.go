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

// readNear finds who is above 80 % of a quota. If that fails, the last answer stays, with the error as its note.
func (c *collector) readNear(ctx context.Context, db *admin.Database) error {
	near, flights, err := c.askNear(ctx, db)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		text := "The counters cannot be read: " + err.Error()
		c.near.Remark = &text
		return err
	}
	looked := c.now.UTC()
	near.Looked = &looked
	c.near, c.flights = near, map[string]int64{}
	for _, f := range flights {
		c.flights[f.Prefix] = f.Requests
	}
	return nil
}

// askNear asks for the counters above 80 % of a quota, and for the requests in flight.
func (c *collector) askNear(ctx context.Context, db *admin.Database) (nearSection, []admin.InFlight, error) {
	const percent = 80
	began := time.Now()
	near := nearSection{Counters: []admin.Usage{}}
	note := func(text string) { near.Remark = &text }
	if c.pools.dsns[ofPolicy] != c.pools.dsns[ofCounters] {
		note("What is used of the limits of rules is not known here, because the policy is in another database than the counters.")
	} else if exists, err := db.HasPolicy(ctx); err != nil {
		return near, nil, err
	} else if exists {
		rules, err := db.Top(ctx, "", mostNear)
		if err != nil {
			return near, nil, err
		}
		near.Counters = append(near.Counters, slices.DeleteFunc(rules, func(u admin.Usage) bool { return *u.Percent < percent })...)
	}
	limits := c.limits()
	flights, err := db.InFlight(ctx, limits)
	if err != nil {
		return near, nil, err
	}
	found, err := db.NearLimits(ctx, limits, percent, mostNear)
	if err != nil {
		return near, nil, err
	}
	near.Counters = append(near.Counters, found...)
	slices.SortStableFunc(near.Counters, func(a, b admin.Usage) int { return cmp.Compare(*b.Percent, *a.Percent) })
	near.Counters = near.Counters[:min(len(near.Counters), mostNear)]
	if wait := share * time.Since(began); wait > 5*time.Second {
		note("There are too many counters to look at all the time: they are looked at every " + span(wait) + ".")
	}
	return near, flights, nil
}
