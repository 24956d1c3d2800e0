package page

import (
	"context"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

const (
	// lookInterval is between two looks at the registry, and lookTimeout is for one. After it the database is down.
	lookInterval = 800 * time.Millisecond
	lookTimeout  = 3 * time.Second
	// freshTime is how long an answer waits for questions that have been answered before: it then has the last
	// answers. firstTime is for the first answers.
	freshTime = 500 * time.Millisecond
	firstTime = lookTimeout + time.Second
	// idleAfter is how long after the last request the answers are forgotten.
	idleAfter = 10 * time.Second
	// share is how many times longer than a slow question the time to its next run is, so that it takes little
	// of the server.
	share = 20

	mostNear    = 50
	mostBans    = 200
	mostChanges = 50
	// changesTime is how far back the changes of rules go, and trafficTime the minutes and the other changes.
	changesTime = 7 * 24 * time.Hour
	trafficTime = time.Hour
)

// collector asks the databases for all open pages of the process. It asks while somebody asks it.
type collector struct {
	pools   *pools
	closing context.Context
	shut    context.CancelFunc

	mu        sync.Mutex // guards all that follows
	questions []*repeated
	asked     time.Time // when somebody last asked

	up       bool
	failure  string
	since    time.Time     // since when it is down
	back     time.Time     // when it came back last; the zero time: it was not down after it had answered
	answered bool          // it has answered since then
	latency  time.Duration // of the last look at the registry
	now      time.Time     // by the clock of the server, at the last look
	proxies  []admin.Node  // in the order of their names
	minutes  []admin.Minute
	changes  []admin.Row // of the last hour
	// ruleChanges are those of rules, limits and tiers.
	ruleChanges []admin.Row
	bans        []admin.Ban
	modes       map[string]int64 // how many rules that hold now have each mode
	rules       ruleNames        // nil: not known yet
	near        nearSection
	top         map[string]any // of the last hour; nil: not known yet
	warnings    []admin.RuleWarning
	obeying     []admin.Node       // the proxies with the policy, if it is elsewhere
	failures    map[dataset]string // why a database other than that of the counters does not answer
	text        []byte             // all sections as JSON; nil: something has changed since
}

// repeated is a question that is asked again when its answer is old. The mutex of the collector guards the fields
// after ask.
type repeated struct {
	of       dataset
	interval time.Duration
	ask      func(ctx context.Context, db *admin.Database) error

	next time.Time
	done chan struct{} // is closed when the question under way has its answer; nil: none is under way
	told bool          // it was answered, or has failed, since somebody began to ask
}

func newCollector(p *pools) *collector {
	c := &collector{pools: p, up: true, failures: map[dataset]string{}, near: nearSection{Counters: []admin.Usage{}}}
	c.closing, c.shut = context.WithCancel(context.Background())
	c.questions = []*repeated{
		{of: ofCounters, interval: lookInterval, ask: c.look}, {of: ofHistory, interval: 2 * time.Second, ask: c.readTraffic},
		{of: ofPolicy, interval: 2 * time.Second, ask: c.readPolicy}, {of: ofCounters, interval: 3 * time.Second, ask: c.readNear},
		{of: ofHistory, interval: 5 * time.Second, ask: c.readTop},
	}
	return c
}

// The questions whose answers have something of their own: look says whether the database is up, and near and top may
// take long.
const questionLook, questionNear, questionTop = 0, 3, 4

func (c *collector) close() { c.shut() }

// refresh asks what is old, and waits for the answers: for the first ones, and else for freshTime. The first answer of
// near is waited for only if needsNear, and that of top never.
func (c *collector) refresh(ctx context.Context, needsNear bool) {
	now := time.Now()
	waits := map[chan struct{}]time.Duration{}
	c.mu.Lock()
	if now.Sub(c.asked) > idleAfter {
		c.forget()
	}
	c.asked = now
	for i, q := range c.questions {
		if q.done == nil && !now.Before(q.next) && c.closing.Err() == nil {
			q.done = make(chan struct{})
			go c.run(q, i == questionLook)
		}
		switch {
		case q.done == nil:
		case q.told || i == questionTop || i == questionNear && !needsNear:
			waits[q.done] = freshTime
		case i == questionNear:
			waits[q.done] = askTimeout
		default:
			waits[q.done] = firstTime
		}
	}
	c.mu.Unlock()
	for done, most := range waits {
		within, cancel := context.WithDeadline(ctx, now.Add(most))
		select {
		case <-done:
		case <-within.Done():
		}
		cancel()
	}
}

// forget forgets what was known when nobody asked any more. The caller holds the mutex.
func (c *collector) forget() {
	c.proxies, c.obeying, c.top = nil, nil, nil
	c.up, c.failure, c.back, c.answered = true, "", time.Time{}, false
	for _, q := range c.questions {
		q.told, q.next = false, time.Time{}
	}
}

// run asks a question.
func (c *collector) run(q *repeated, isLook bool) {
	timeout := askTimeout
	if isLook {
		timeout = lookTimeout
	}
	ctx, cancel := context.WithTimeout(c.closing, timeout)
	defer cancel()
	began := time.Now()
	connected := false
	err := c.pools.ask(ctx, q.of, func(ctx context.Context, db *admin.Database) error {
		began, connected = time.Now(), true // a connection costs the server little
		return q.ask(ctx, db)               // what has failed stays as it was
	})
	c.mu.Lock()
	defer c.mu.Unlock()
	wait := q.interval
	if took := time.Since(began); connected && !isLook && share*took > wait {
		wait = share * took
	}
	q.next, q.told = time.Now().Add(wait), true
	c.text = nil
	close(q.done)
	q.done = nil
	if isLook {
		c.setUp(err)
	} else if c.pools.dsns[q.of] != c.pools.dsns[ofCounters] { // else the look says it
		delete(c.failures, q.of)
		if failureIsDown(err) {
			c.failures[q.of] = oneLine(err.Error())
		}
	}
}

// setUp remembers whether the database answers. The caller holds the mutex.
func (c *collector) setUp(err error) {
	up := err == nil
	switch {
	case c.up && !up:
		c.since = time.Now()
	case !c.up && up && c.answered:
		c.back = time.Now()
	}
	c.up, c.failure, c.answered = up, "", c.answered || up
	if err != nil {
		c.failure = oneLine(err.Error())
	}
}

// loading reports whether something has not been answered yet, apart from near and top. The caller holds the mutex.
func (c *collector) loading() bool {
	for i, q := range c.questions {
		if !q.told && i != questionNear && i != questionTop {
			return true
		}
	}
	return false
}

// look reads the registry.
func (c *collector) look(ctx context.Context, db *admin.Database) error {
	asked := time.Now()
	nodes, err := db.Nodes(ctx)
	if err != nil {
		return err
	}
	latency := time.Since(asked)
	c.mu.Lock()
	defer c.mu.Unlock()
	nodes = admin.AddObeying(nodes, c.obeying)
	c.latency, c.now = latency, time.Now()
	if len(nodes) > 0 {
		c.now = nodes[0].Seen.Add(time.Duration(nodes[0].SecondsAgo * float64(time.Second)))
	}
	c.proxies = nodes
	return nil
}

// get is the answer to a question, unless one before it has failed.
func get[T any](ctx context.Context, failed *error, ask func(context.Context) (T, error)) (answer T) {
	if *failed == nil {
		answer, *failed = ask(ctx)
	}
	return answer
}

// readPolicy reads the changes, the bans, the rules, and which proxies obey a policy that is elsewhere.
func (c *collector) readPolicy(ctx context.Context, db *admin.Database) error {
	exists, err := db.HasPolicy(ctx)
	if err != nil || !exists {
		return err
	}
	now := get(ctx, &err, db.Now)
	changed := func(from time.Time, kinds []string) []admin.Row {
		return get(ctx, &err, func(ctx context.Context) ([]admin.Row, error) {
			return db.Ask(ctx, changesSQL, from, now.Add(time.Hour), int64(mostChanges), kinds)
		})
	}
	changes, ruleChanges := changed(trafficFrom(now), nil), changed(now.Add(-changesTime), ruleKinds)
	rules, bans, warnings := get(ctx, &err, db.RuleStates), get(ctx, &err, db.Bans), get(ctx, &err, db.RuleWarnings)
	var obeying []admin.Node
	if c.pools.dsns[ofPolicy] != c.pools.dsns[ofCounters] {
		obeying = get(ctx, &err, db.Nodes)
	}
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.changes, c.ruleChanges, c.bans, c.obeying, c.warnings = changes, ruleChanges, bans, obeying, warnings
	c.modes, c.rules = map[string]int64{}, namesOf(rules)
	for _, r := range rules {
		if r.Valid {
			c.modes[r.Mode]++
		}
	}
	return nil
}

func (c *collector) readTraffic(ctx context.Context, db *admin.Database) error {
	now, err := db.Now(ctx)
	if err != nil {
		return err
	}
	minutes, err := db.Traffic(ctx, admin.Period{From: trafficFrom(now), Until: now.Add(time.Hour)})
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.minutes = minutes
	}
	return err
}
