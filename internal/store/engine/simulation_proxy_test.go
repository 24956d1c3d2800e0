package engine_test

import (
	"context"
	"fmt"
	"hash/maphash"
	"math"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/store/registry"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// simProxy handles requests like a proxy, without HTTP.
type simProxy struct {
	run    *simRun
	number int
	name   string
	chance chance
	store  *store.Store
	policy *policy.Policy
	site   *serve.Site
	db     *simDB
	handle func(c chance) // handles a request
	hits   sync.WaitGroup // the requests in flight

	mu       sync.Mutex // guards all that follows
	waits    bool       // a request with a user has arrived
	admitted int64      // hits on the contested key after the first five seconds
}

// newSimProxy starts a proxy.
func newSimProxy(run *simRun, number int) *simProxy {
	p := &simProxy{run: run, number: number, name: fmt.Sprint("proxy", number),
		chance: run.plan.seed.with(30, int64(number))}
	db := &simDB{server: run.server, plan: run.plan, proxy: number, chance: p.chance.with(1),
		minLatency: p.chance.with(2).duration(run.plan.minLatency/2) + run.plan.minLatency/2}
	var err error
	random := func() float64 { return p.chance.with(3, simSince()).float() }
	hash := func(_ maphash.Seed, key string) uint64 { return uint64(p.chance.with(4).withText(key)) }
	node := &registry.Node{Name: p.name, Epoch: int64(number) + 1}
	p.store, err = store.Open(db, engine.Options{DisableMigration: true, Random: random, Hash: hash}, node)
	if err != nil {
		panic(err)
	}
	p.site = &serve.Site{Store: p.store, Handler: settings.Handler{Timeout: run.plan.timeout,
		OnError: settings.Local}}
	p.site.Prepare()
	p.db = db
	p.handle = p.handleRequest
	if run.plan.tokens != nil {
		p.handle = p.handlePrompt
	}
	p.policy = policy.New(db, policy.Settings{DisableMigration: true, Health: p.store.Health(),
		Random: random, OnApplied: node.SetApplied})
	return p
}

// sendRequests sends requests at random moments until the load ends.
func (p *simProxy) sendRequests() {
	mean := time.Duration(float64(time.Second) / p.run.plan.rate)
	time.Sleep(p.chance.with(5).duration(500 * time.Millisecond))
	p.store.Prepare()
	time.Sleep(p.chance.with(6).duration(100 * time.Millisecond))
	p.policy.Prepare()
	for n := int64(0); ; n++ {
		time.Sleep(p.chance.with(7, n).duration(mean))
		if time.Since(simBorn) > p.run.plan.load {
			break
		}
		p.hits.Go(func() { p.handle(p.chance.with(8, n)) })
	}
	p.hits.Wait()
}

// simKeys is the number of keys. A few of them are frequent.
const simKeys = 1_000_000

// randomKey draws a key by its number, with an evenly distributed logarithm.
func (c chance) randomKey() string {
	return fmt.Sprint("k", int64(math.Pow(simKeys, c.float())))
}

// sleepBriefly sleeps for a random processing time. Random delays keep two events of a proxy from occurring
// in the same nanosecond, so that each run has the same order.
func (c chance) sleepBriefly() { time.Sleep(time.Duration(1 + c.intn(int64(50*time.Microsecond)))) }

// handleRequest decides a request.
func (p *simProxy) handleRequest(c chance) {
	plan := p.run.plan
	var verdict policy.Verdict
	var hits []ratelimit.Hit
	draw := c.with(1).float()
	if draw < plan.contestedShare && plan.isQuiet() {
		return
	}
	if draw < plan.contestedShare {
		hits = append(hits, ratelimit.Hit{Limit: plan.contested, Key: "all", Cost: 1})
	}
	if draw >= plan.contestedShare || draw < 0.05 {
		hits = append(hits, ratelimit.Hit{Limit: plan.client, Key: c.with(2).randomKey(), Cost: 1})
	}
	if draw > 0.7 {
		facts := policy.Facts{DefaultTier: "anonymous", Address: netip.AddrFrom4([4]byte{10, 0, 0, 1}),
			Method: "GET", Host: "h", Path: "/"}
		start := time.Now()
		err := p.policy.Evaluate(context.Background(), p.run.plan.timeout, "", p.pickUser(c.with(3)), &facts,
			&verdict)
		p.checkDuration("the policy", start, err)
		hits = append(hits, verdict.Hits...)
		c.with(4).sleepBriefly()
	}
	decisions := make([]ratelimit.Decision, len(hits))
	start := time.Now()
	err := p.store.Take(context.Background(), plan.timeout, hits, decisions)
	p.checkDuration("the decision", start, err)
	q := &serve.Request{Hits: hits, Decisions: decisions,
		Terms: slices.Repeat([]*policy.Terms{{Status: 429}}, len(hits))}
	serve.SetOutcomes(q)
	out := q.Outcome
	if err != nil {
		c.with(5).sleepBriefly()
		out = serve.TakeLocal(p.site, q, err)
	}
	if out.Err == nil && out.Status == 0 {
		p.recordAdmitted(hits, decisions)
	}
}

// pickUser draws a user. Until the first rules arrive, only one request gets a user, because waiting
// requests would look users up in an unpredictable order.
func (p *simProxy) pickUser(c chance) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waits && p.policy.Stats().Polled.IsZero() {
		return ""
	}
	p.waits = true
	return "user-" + c.randomKey()
}

// checkDuration fails the simulation if a call took too long, or failed where it must be repeated.
func (p *simProxy) checkDuration(what string, start time.Time, err error) {
	if err != nil && strings.Contains(err.Error(), simConflict) {
		p.run.fail("%s: %s fails with %v, want a retry", p.name, what, err)
	}
	if took := time.Since(start); took > health.MaxTimeouts*p.run.plan.timeout {
		p.run.fail("%s: %s took %v with a timeout of %v: %v", p.name, what, took, p.run.plan.timeout, err)
	}
}

// recordAdmitted records a request that was admitted.
func (p *simProxy) recordAdmitted(hits []ratelimit.Hit, decisions []ratelimit.Decision) {
	now := time.Now().UnixMicro()
	p.mu.Lock()
	for _, h := range hits {
		if h.Limit == p.run.plan.contested && time.Since(simBorn) > 5*time.Second {
			p.admitted++
		}
	}
	p.mu.Unlock()
	r := p.run
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, h := range hits {
		at := now // the time of a decision without the database
		if decisions[i].Source == ratelimit.FromPostgres {
			at = decisions[i].DecidedAt
		}
		id := lease.RowID{Durable: h.Limit.Durable, Prefix: h.Limit.Prefix, Key: h.Key}
		r.admitted[id] = append(r.admitted[id], simAdmitted{at, h.Cost, decisions[i].Source})
		r.requests++
	}
}

// close closes the policy and the store.
func (p *simProxy) close() {
	p.policy.Close()
	p.store.Close()
}
