package page

import (
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
	near, err := c.askNear(ctx, db)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		text := "The counters cannot be read: " + err.Error()
		c.near.Remark = &text
		return err
	}
	looked := c.now.UTC()
	near.Looked = &looked
	c.near = near
	return nil
}

// askNear asks for the counters of rules above 80 % of a quota. The database does not know the quotas of configurations.
func (c *collector) askNear(ctx context.Context, db *admin.Database) (nearSection, error) {
	const percent = 80
	began := time.Now()
	near := nearSection{Counters: []admin.Usage{}}
	note := func(text string) { near.Remark = &text }
	if c.pools.dsns[ofPolicy] != c.pools.dsns[ofCounters] {
		note("What is used of the limits of rules is not known here, because the policy is in another database than the counters.")
		return near, nil
	}
	exists, err := db.HasPolicy(ctx)
	if err != nil || !exists {
		return near, err
	}
	found, err := db.Top(ctx, "", mostNear)
	if err != nil {
		return near, err
	}
	near.Counters = append(near.Counters, slices.DeleteFunc(found, func(u admin.Usage) bool { return *u.Percent < percent })...)
	if wait := share * time.Since(began); wait > 5*time.Second {
		note("There are too many counters to look at all the time: they are looked at every " + span(wait) + ".")
	}
	return near, nil
}
