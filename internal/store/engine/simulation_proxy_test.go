package engine_test

import (
	"context"
	"fmt"
	"hash/maphash"
	"math"
	"net/netip"
	"sync"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/health"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/store/registry"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// simProxy handles requests as a proxy does, without a network.
type simProxy struct {
	run    *simRun
	number int
	name   string
	chance chance
	store  *store.Store
	policy *policy.Policy
	site   *serve.Site
	hits   sync.WaitGroup // of the requests under way

	mu       sync.Mutex // guards all that follows
	waits    bool       // a request with a user has come
	admitted int64      // on the contested key, from its first second to the end of the load
}

// newSimProxy starts a proxy.
func newSimProxy(run *simRun, number int) *simProxy {
	p := &simProxy{run: run, number: number, name: fmt.Sprint("proxy", number),
		chance: run.plan.seed.of(30, int64(number))}
	db := &simDB{server: run.server, plan: run.plan, proxy: number, chance: p.chance.of(1),
		far: p.chance.of(2).wait(run.plan.far/2) + run.plan.far/2}
	var err error
	random := func() float64 { return p.chance.of(3, simSince()).share() }
	hash := func(_ maphash.Seed, key string) uint64 { return uint64(p.chance.of(4).text(key)) }
	p.store, err = store.Open(db, engine.Options{DisableMigration: true, Random: random, Hash: hash},
		&registry.Node{Name: p.name, Epoch: int64(number) + 1})
	if err != nil {
		panic(err)
	}
	p.site = &serve.Site{Timeout: run.plan.timeout, OnError: settings.Local}
	p.site.UseStore(p.store)
	applied := func(seq int64, log string, problems []string) { p.store.SetApplied(seq, log, problems) }
	p.policy = policy.New(db, policy.Settings{DisableMigration: true, Health: p.store.Health(),
		Random: random, OnApplied: applied})
	return p
}

// load sends requests at random moments until the load ends.
func (p *simProxy) load() {
	mean := time.Duration(float64(time.Second) / p.run.plan.rate)
	time.Sleep(p.chance.of(5).wait(500 * time.Millisecond))
	p.store.Prepare()
	time.Sleep(p.chance.of(6).wait(100 * time.Millisecond))
	p.policy.Prepare()
	for n := int64(0); ; n++ {
		time.Sleep(p.chance.of(7, n).wait(mean))
		if time.Since(simBorn) > p.run.plan.load {
			break
		}
		p.hits.Go(func() { p.request(p.chance.of(8, n)) })
	}
	p.hits.Wait()
}

// simKeys is the number of keys. A few of them are frequent.
const simKeys = 1_000_000

// key draws the number of a key, with an evenly distributed logarithm.
func (c chance) key() string {
	return fmt.Sprint("k", int64(math.Pow(simKeys, c.share())))
}

// work sleeps for the time that a proxy needs. Random delays keep two events of a proxy from sharing a
// nanosecond, so that each run has the same order.
func (c chance) work() { time.Sleep(time.Duration(1 + c.below(int64(50*time.Microsecond)))) }

// request decides a request.
func (p *simProxy) request(c chance) {
	plan := p.run.plan
	var verdict policy.Verdict
	var hits []ratelimit.Hit
	what := c.of(1).share()
	if what < plan.contests && plan.lull() {
		return
	}
	if what < plan.contests {
		hits = append(hits, ratelimit.Hit{Limit: plan.contest, Key: "all", Cost: 1})
	}
	if what >= plan.contests || what < 0.05 {
		hits = append(hits, ratelimit.Hit{Limit: plan.client, Key: c.of(2).key(), Cost: 1})
	}
	if what > 0.7 {
		facts := policy.Facts{Tier: "anonymous", Address: netip.AddrFrom4([4]byte{10, 0, 0, 1}),
			Method: "GET", Host: "h", Path: "/"}
		began := time.Now()
		err := p.policy.Evaluate(context.Background(), p.run.plan.timeout, "", p.user(c.of(3)), &facts,
			&verdict)
		p.late("the policy", began, err)
		hits = append(hits, verdict.Hits...)
		c.of(4).work()
	}
	decisions := make([]ratelimit.Decision, len(hits))
	began := time.Now()
	err := p.store.Take(context.Background(), plan.timeout, hits, decisions)
	p.late("the decision", began, err)
	q := &serve.Request{Hits: hits, Decisions: decisions}
	out := serve.Judge(q)
	if err != nil {
		c.of(5).work()
		out = serve.TakeLocal(p.site, q, err)
	}
	if out.Err == nil && out.Status == 0 {
		p.admit(hits, decisions)
	}
}

// user draws a user. Until the first rules arrive, only one request gets a user; otherwise waiting requests
// would look users up at once, in an unpredictable order.
func (p *simProxy) user(c chance) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.waits && p.policy.Stats().Polled.IsZero() {
		return ""
	}
	p.waits = true
	return "user-" + c.key()
}

// late fails the simulation if a call took too long.
func (p *simProxy) late(what string, began time.Time, err error) {
	if took := time.Since(began); took > health.MostTimeouts*p.run.plan.timeout {
		p.run.fail("%s: %s took %v with a timeout of %v: %v", p.name, what, took, p.run.plan.timeout, err)
	}
}

// admit records a request that was admitted.
func (p *simProxy) admit(hits []ratelimit.Hit, decisions []ratelimit.Decision) {
	now := time.Now().UnixMicro()
	p.mu.Lock()
	for _, h := range hits {
		if h.Limit == p.run.plan.contest && time.Since(simBorn) > 5*time.Second {
			p.admitted++
		}
	}
	p.mu.Unlock()
	r := p.run
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, h := range hits {
		at := now // of units that are used
		if decisions[i].Source == ratelimit.FromPostgres {
			at = decisions[i].DecidedAt
		}
		id := lease.RowID{Durable: h.Limit.Durable, Prefix: h.Limit.Prefix, Key: h.Key}
		r.admitted[id] = append(r.admitted[id], simAdmitted{at, h.Cost, decisions[i].Source})
		r.requests++
	}
}

// close ends a proxy.
func (p *simProxy) close() {
	p.policy.Close()
	p.store.Close()
}
