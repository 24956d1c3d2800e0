package page

import (
	"context"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
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
	// changesTime is how far back the changes go, and trafficTime the minutes.
	changesTime = 7 * 24 * time.Hour
	trafficTime = time.Hour
)

// collector asks the database for all open pages of the process. It runs while it has users.
type collector struct {
	dsns    dsns
	closing context.Context
	shut    context.CancelFunc

	mu      sync.Mutex // guards all that follows
	users   int
	until   time.Time // it runs until then without users
	running bool

	up        bool
	failure   string
	since     time.Time     // since when it is up, or down
	latency   time.Duration // of the last look at the registry
	unwatched string        // why proxies cannot be told that a page is open
	began     time.Time     // when the collector began to run
	now       time.Time     // by the clock of the server
	proxies   []*proxy      // in the order of their names
	pause     *admin.Pause
	minutes   []admin.Minute
	changes   []admin.Change
	bans      []admin.Ban
	modes     map[string]int64 // how many rules have each mode
	near      nearSection
	flights   map[string]int64   // requests in flight by prefix
	obeying   []admin.Node       // the proxies with the policy, if it is elsewhere
	failures  map[dataset]string // why a database other than that of the counters does not answer
	sections  map[string]*section
	changed   chan struct{} // closed at the next change of a section
	asking    int           // how many databases have yet to answer the slow questions for the first time
}

// section is a part of the page as JSON. The version is another one after each change.
type section struct {
	text    []byte
	version int64
}

func newCollector(d dsns) *collector {
	c := &collector{dsns: d, sections: map[string]*section{}, changed: make(chan struct{})}
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
	c.running, c.began = true, time.Now()
	c.up, c.failure, c.since = true, "", time.Time{}
	c.proxies, c.obeying, c.sections, c.failures = nil, nil, map[string]*section{}, map[dataset]string{}
	ctx, end := context.WithCancel(c.closing)
	go func() {
		defer end()
		c.look(ctx)
	}()
	c.askSlowly(ctx)
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
				if db, err = openDatabase(within, c.dsns[ofCounters]); err != nil {
					return err
				}
			}
			if began.Sub(watched) >= watchInterval {
				err := db.Watch(within, watchTime)
				if db.Conn().IsClosed() {
					return err
				}
				c.mu.Lock()
				c.unwatched = ""
				if err != nil {
					c.unwatched = err.Error()
				} else {
					watched = began
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
	nodes = admin.AddObeying(nodes, c.obeying)
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

// sleep waits for a time, or until ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
