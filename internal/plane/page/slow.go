package page

import (
	"context"
	"slices"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// slowQuestion is asked again after an interval, or later if it takes long.
type slowQuestion struct {
	of       dataset
	interval time.Duration
	ask      func(ctx context.Context, db *admin.Database) error
	next     time.Time
}

// askSlowly asks what need not be asked each second: of each database one question at a time, on a connection of its
// own. The caller holds the mutex.
func (c *collector) askSlowly(ctx context.Context) {
	questions := map[string][]*slowQuestion{}
	for _, q := range []*slowQuestion{
		{of: ofHistory, interval: 2 * time.Second, ask: c.readTraffic}, {of: ofPolicy, interval: 4 * time.Second, ask: c.readChanges},
		{of: ofPolicy, interval: 4 * time.Second, ask: c.readBans}, {of: ofCounters, interval: 3 * time.Second, ask: c.readNear},
		{of: ofPolicy, interval: tick, ask: c.readObeying},
	} {
		questions[c.dsns[q.of]] = append(questions[c.dsns[q.of]], q)
	}
	c.asking = len(questions)
	for _, all := range questions {
		go c.askDatabase(ctx, all)
	}
}

// askDatabase asks the database of all these questions.
func (c *collector) askDatabase(ctx context.Context, questions []*slowQuestion) {
	at := &connections{dsns: c.dsns, open: map[string]*admin.Database{}}
	defer at.close()
	for first := true; ctx.Err() == nil; first = false {
		for _, q := range questions {
			began := time.Now()
			if began.Before(q.next) || ctx.Err() != nil {
				continue
			}
			within, cancel := context.WithTimeout(ctx, askTimeout)
			db, err := at.at(within, q.of)
			took := time.Duration(0) // a connection costs the server little
			if err == nil {
				began = time.Now()
				err = q.ask(within, db) // what has failed stays as it was
				took = time.Since(began)
			}
			cancel()
			c.setFailure(q.of, err, db == nil || at.broken())
			if at.broken() {
				at.close()
			}
			q.next = time.Now().Add(max(q.interval, share*took))
		}
		c.mu.Lock()
		if first && ctx.Err() == nil {
			c.asking--
		}
		c.mu.Unlock()
		sleep(ctx, tick/5)
	}
}

// setFailure remembers whether a database answers that is not that of the counters: look does this for it.
func (c *collector) setFailure(of dataset, err error, down bool) {
	if c.dsns[of] == c.dsns[ofCounters] {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.failures, of)
	if err != nil && down {
		c.failures[of] = err.Error()
	}
}

// readObeying reads which proxies obey a policy that is elsewhere.
func (c *collector) readObeying(ctx context.Context, db *admin.Database) error {
	if c.dsns[ofPolicy] == c.dsns[ofCounters] {
		return nil // look reads them
	}
	nodes, err := db.Nodes(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.obeying = nodes
	}
	return err
}

func (c *collector) readTraffic(ctx context.Context, db *admin.Database) error {
	c.mu.Lock()
	now := c.now
	c.mu.Unlock()
	if now.IsZero() {
		now = time.Now()
	}
	minutes, err := db.Traffic(ctx, admin.Period{From: trafficFrom(now), Until: now.Add(time.Hour)})
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.minutes = minutes
	}
	return err
}

func (c *collector) readChanges(ctx context.Context, db *admin.Database) error {
	changes, err := db.Changes(ctx, changesTime, mostChanges)
	if err != nil {
		return err
	}
	modes, err := db.RuleModes(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changes = changes
	if err == nil {
		c.modes = modes
	}
	return err
}

func (c *collector) readBans(ctx context.Context, db *admin.Database) error {
	bans, err := db.Bans(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.bans = bans
	}
	return err
}

// readNear finds who is above 80 % of a quota.
func (c *collector) readNear(ctx context.Context, db *admin.Database) error {
	const percent = 80
	began := time.Now()
	near := nearSection{Counters: []shownUsage{}}
	rules, err := db.Top(ctx, "", mostNear)
	for i := range rules {
		if rules[i].Percent != nil && *rules[i].Percent >= percent {
			near.Counters = append(near.Counters, usageOf(&rules[i], true))
		}
	}
	if c.dsns[ofPolicy] != c.dsns[ofCounters] {
		text := "What is used of the limits of rules is not known here, because the policy is in another database than the counters."
		near.Remark = &text
	}
	limits := c.limits()
	flights, failed := db.InFlight(ctx, prefixesInFlight(limits))
	if failed != nil {
		return failed
	}
	found, failed := db.NearLimits(ctx, limits, percent, mostNear)
	if failed != nil {
		return failed
	}
	_ = err // a database without a policy has counters of configurations only
	for i := range found {
		near.Counters = append(near.Counters, usageOf(&found[i], false))
	}
	slices.SortStableFunc(near.Counters, func(a, b shownUsage) int { return int(*b.Percent*1000) - int(*a.Percent*1000) })
	near.Counters = near.Counters[:min(len(near.Counters), mostNear)]
	if wait := share * time.Since(began); wait > 5*time.Second {
		text := "There are too many counters to look at all the time: they are looked at every " + span(wait) + "."
		near.Remark = &text
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	near.Looked = c.now
	c.near, c.flights = near, flights
	return nil
}

// limits are the different limits of all configurations, if their amounts are known.
func (c *collector) limits() []*ratelimit.Limit {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []*ratelimit.Limit
	seen := map[ratelimit.Limit]bool{}
	for _, p := range c.proxies {
		if p.now == nil {
			continue
		}
		for _, h := range p.now.Handlers {
			for i := range h.Limits {
				l := h.Limits[i].limit()
				if l != nil && !h.Limits[i].Varies && !seen[*l] {
					seen[*l] = true
					all = append(all, l)
				}
			}
		}
	}
	return all
}

// prefixesInFlight are those of limits of requests in flight.
func prefixesInFlight(limits []*ratelimit.Limit) []string {
	var prefixes []string
	for _, l := range limits {
		if l.Algorithm == ratelimit.InFlight {
			prefixes = append(prefixes, l.Prefix)
		}
	}
	return prefixes
}
