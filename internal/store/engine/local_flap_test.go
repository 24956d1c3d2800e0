package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// flapPlan returns a plan for three proxies, whose database is away for 700 ms and then there for 150 ms,
// from the fifth second to the end of the 35th. The fault is of a kind.
func flapPlan(kind simKind, seed uint64) *simPlan {
	p := &simPlan{seed: chance(seed), proxies: 3, load: 45 * time.Second, timeout: simTimeout,
		minLatency: time.Millisecond, meanJitter: 300 * time.Microsecond,
		contested: &ratelimit.Limit{Prefix: "durable", Algorithm: ratelimit.FixedWindow, Events: 1000,
			Window: time.Hour, Durable: true},
		client: &ratelimit.Limit{Prefix: "ephemeral", Algorithm: ratelimit.SlidingWindow, Events: 1000,
			Window: time.Hour}}
	const away, period = int64(700 * time.Millisecond), int64(850 * time.Millisecond)
	for at := int64(5 * time.Second); at < int64(35*time.Second); at += period {
		p.outages = append(p.outages, simOutage{kind: kind, from: at, to: at + away})
	}
	return p
}

// flapCount counts what the proxies did with the hits on a limit.
type flapCount struct{ admitted, unanswered int64 }

// ask sends requests on both limits until the load ends.
func (p *simProxy) ask(c map[*ratelimit.Limit]*flapCount) {
	plan := p.run.plan
	for n := int64(0); time.Since(simBorn) < plan.load; n++ {
		time.Sleep(p.chance.with(7, n).duration(30 * time.Millisecond))
		for _, l := range []*ratelimit.Limit{plan.contested, plan.client} {
			p.hits.Go(func() {
				hits := []ratelimit.Hit{{Limit: l, Key: "k", Cost: 1}}
				decisions := make([]ratelimit.Decision, 1)
				err := p.store.Take(context.Background(), plan.timeout, hits, decisions)
				q := &serve.Request{Hits: hits, Decisions: decisions,
					Terms: slices.Repeat([]*policy.Terms{{Status: 429}}, len(hits))}
				serve.SetOutcomes(q)
				out := q.Outcome
				if err != nil {
					out = serve.TakeLocal(p.site, q, err)
				}
				p.run.mu.Lock()
				defer p.run.mu.Unlock()
				if errors.Is(err, ratelimit.ErrTimeout) || errors.Is(err, engine.ErrSent) {
					c[l].unanswered++
				}
				if out.Err == nil && out.Status == 0 {
					c[l].admitted++
				}
			})
		}
	}
	p.hits.Wait()
}

// Over a connection that flaps, three proxies with on_error local admit at most the limit, one request for
// each proxy, and those without an answer, in both tables. Afterwards the database has what they admitted.
func TestFlappingDatabaseAdmitsOnce(t *testing.T) {
	for _, kind := range []simKind{simCut, simHole, simHang} {
		for seed := range uint64(3) {
			t.Run(fmt.Sprint(kind, seed), func(t *testing.T) { t.Parallel(); checkFlapping(t, kind, seed) })
		}
	}
}

func checkFlapping(t *testing.T, kind simKind, seed uint64) {
	plan := flapPlan(kind, seed)
	r := &simRun{plan: plan, admitted: map[lease.RowID][]simAdmitted{},
		server: newSimServer([]*ratelimit.Limit{plan.contested, plan.client}, plan.outages)}
	counts := map[*ratelimit.Limit]*flapCount{plan.contested: {}, plan.client: {}}
	lost := int64(0)
	synctest.Test(t, func(*testing.T) {
		var group sync.WaitGroup
		for n := range plan.proxies {
			p := newSimProxy(r, n)
			r.proxies = append(r.proxies, p)
			group.Go(func() { p.ask(counts) })
		}
		group.Wait()
		for _, p := range r.proxies {
			lost += p.store.Local().Lost
			p.close()
		}
		time.Sleep(time.Minute)
	})
	for l, c := range counts {
		// Shares are rounded up, and a proxy may not know the last hits that others have taken before.
		bound := l.Events + 2*int64(plan.proxies) + c.unanswered
		if lost > 0 {
			bound += l.Events / int64(plan.proxies) // a charge may have been made or not
		}
		if c.admitted > bound || c.admitted < l.Events*9/10 {
			t.Errorf("%s: %d of %d admitted, want at most %d: %d had no answer, %d charges lost",
				l.Prefix, c.admitted, l.Events, bound, c.unanswered, lost)
		}
		if n := r.server.rows[lease.RowOf(l, "k")].Count; n != l.Events {
			t.Errorf("%s: the database has counted %d of %d, want all", l.Prefix, n, l.Events)
		}
	}
}
