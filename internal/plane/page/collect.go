package page

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

const (
	// tick is the time between two looks at the registry.
	tick = time.Second
	// tickTimeout is for one look. After it the database is down.
	tickTimeout = 3 * time.Second
	// watchInterval is the time between two notices to the proxies that a page is open, and watchTime is for how
	// long a notice holds.
	watchInterval = 3 * time.Second
	watchTime     = 10 * time.Second
	// lingerTime is for how long the collector goes on after its last user.
	lingerTime = 10 * time.Second
	// share is how many times longer than a slow question the time to its next run is, so that it takes little
	// of the server.
	share = 20

	mostNear    = 50
	mostBans    = 200
	mostChanges = 50
	mostSeconds = 120
	// changesTime is how far back the changes go, and trafficTime the minutes.
	changesTime = 7 * 24 * time.Hour
	trafficTime = time.Hour
)

// collector asks the database for all open pages of the process. It runs while it has users.
type collector struct {
	dsn     string
	closing context.Context
	shut    context.CancelFunc

	mu      sync.Mutex // guards all that follows
	users   int
	until   time.Time // it runs until then without users
	running bool

	up         bool
	failure    string
	since      time.Time     // since when it is up, or down
	latency    time.Duration // of the last look at the registry
	unwatched  string        // why proxies cannot be told that a page is open
	began      time.Time     // when the collector began to run
	now        time.Time     // by the clock of the server
	proxies    []*proxy      // in the order of their names
	pause      *admin.Pause
	seconds    []second // the last ones
	minutes    []admin.Minute
	changes    []admin.Change
	bans       []admin.Ban
	modes      map[string]int64 // how many rules have each mode
	near       nearSection
	sections   map[string]*section
	changed    chan struct{} // closed at the next change of a section
	firstRound bool          // the slow questions were asked
}

// second is what all proxies did in a second.
type second struct {
	at time.Time
	rates
}

// section is a part of the page as JSON. The version is another one after each change.
type section struct {
	text    []byte
	version int64
}

func newCollector(dsn string) *collector {
	c := &collector{dsn: dsn, sections: map[string]*section{}, changed: make(chan struct{})}
	c.closing, c.shut = context.WithCancel(context.Background())
	return c
}

func (c *collector) close() { c.shut() }

// use has the collector run until release is called.
func (c *collector) use() (release func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.users++
	c.start()
	return sync.OnceFunc(func() {
		c.mu.Lock()
		c.users--
		c.until = time.Now().Add(lingerTime)
		c.mu.Unlock()
	})
}

// start starts the loops, unless they run. The caller holds the mutex.
func (c *collector) start() {
	if c.running || c.closing.Err() != nil {
		return
	}
	c.running, c.began, c.firstRound = true, time.Now(), false
	c.up, c.failure, c.since = true, "", time.Time{}
	c.proxies, c.seconds, c.sections = nil, nil, map[string]*section{}
	ctx, end := context.WithCancel(c.closing)
	go func() {
		defer end()
		c.look(ctx)
	}()
	go c.askSlowly(ctx)
}

// needed reports whether the collector still has users. If not, the next user starts it again.
func (c *collector) needed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running = c.users > 0 || time.Now().Before(c.until)
	return c.running
}

// look looks at the registry once a second.
func (c *collector) look(ctx context.Context) {
	var db *admin.Database
	defer func() {
		if db != nil {
			db.Close()
		}
	}()
	var watched time.Time
	for c.needed() && ctx.Err() == nil {
		began := time.Now()
		within, cancel := context.WithTimeout(ctx, tickTimeout)
		err := func() (err error) {
			if db == nil {
				if db, err = openDatabase(within, c.dsn); err != nil {
					return err
				}
			}
			if began.Sub(watched) >= watchInterval {
				err := db.Watch(within, watchTime)
				if db.Conn().IsClosed() {
					return err
				}
				watched = began
				c.mu.Lock()
				c.unwatched = ""
				if err != nil {
					c.unwatched = err.Error()
				}
				c.mu.Unlock()
			}
			return c.readProxies(within, db)
		}()
		cancel()
		c.mu.Lock()
		c.setUp(err)
		c.publish()
		c.mu.Unlock()
		if db != nil && db.Conn().IsClosed() {
			db.Close()
			db = nil
		}
		sleep(ctx, tick-time.Since(began))
	}
}

// readProxies reads the registry and the pause.
func (c *collector) readProxies(ctx context.Context, db *admin.Database) error {
	asked := time.Now()
	nodes, err := db.Nodes(ctx)
	if err != nil {
		return err
	}
	latency := time.Since(asked)
	pause, err := db.Paused(ctx)
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.latency, c.pause, c.now = latency, pause, time.Now()
	if len(nodes) > 0 {
		c.now = nodes[0].Seen.Add(time.Duration(nodes[0].SecondsAgo * float64(time.Second)))
	}
	known := map[string]*proxy{}
	for _, p := range c.proxies {
		known[p.Node.Node] = p
	}
	c.proxies = nil
	for i := range nodes {
		p := known[nodes[i].Node]
		if p == nil {
			p = &proxy{}
		}
		p.update(&nodes[i], time.Now())
		c.proxies = append(c.proxies, p)
	}
	if sum := c.rates(); sum != nil {
		c.seconds = append(c.seconds, second{c.now, *sum})
		c.seconds = c.seconds[max(0, len(c.seconds)-mostSeconds):]
	}
	return nil
}

// rates are those of all live proxies; nil while none is known. The caller holds the mutex.
func (c *collector) rates() *rates {
	var sum *rates
	for _, p := range c.proxies {
		if one := p.rates(); one != nil && p.Live {
			if sum == nil {
				sum = &rates{}
			}
			sum.Allowed += one.Allowed
			sum.Refused += one.Refused
			sum.Failed += one.Failed
		}
	}
	return sum
}

// setUp remembers whether the database answers. The caller holds the mutex.
func (c *collector) setUp(err error) {
	up := err == nil
	if up != c.up {
		c.since = time.Now()
	}
	c.up, c.failure = up, ""
	if err != nil {
		c.failure = err.Error()
	}
}

// slowQuestion is asked again after an interval, or later if it takes long.
type slowQuestion struct {
	interval time.Duration
	ask      func(ctx context.Context, db *admin.Database) error
	next     time.Time
}

// askSlowly asks what need not be asked each second, one question at a time, on a connection of its own.
func (c *collector) askSlowly(ctx context.Context) {
	questions := []*slowQuestion{
		{interval: 2 * time.Second, ask: c.readTraffic}, {interval: 4 * time.Second, ask: c.readChanges}, {interval: 4 * time.Second, ask: c.readBans}, {interval: 3 * time.Second, ask: c.readNear},
	}
	var db *admin.Database
	defer func() {
		if db != nil {
			db.Close()
		}
	}()
	for ctx.Err() == nil {
		for _, q := range questions {
			began := time.Now()
			if began.Before(q.next) || ctx.Err() != nil {
				continue
			}
			within, cancel := context.WithTimeout(ctx, askTimeout)
			var err error
			if db == nil {
				db, err = openDatabase(within, c.dsn)
			}
			if err == nil {
				_ = q.ask(within, db) // what has failed stays as it was; look notices that the database is down
			}
			cancel()
			if db != nil && db.Conn().IsClosed() {
				db.Close()
				db = nil
			}
			q.next = time.Now().Add(max(q.interval, share*time.Since(began)))
		}
		c.mu.Lock()
		c.firstRound = true
		c.mu.Unlock()
		sleep(ctx, tick/5)
	}
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
	limits := c.limits()
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
	c.near = near
	return nil
}

// limits are the different limits of all configurations whose amounts are known.
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

// sleep waits for a time, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
