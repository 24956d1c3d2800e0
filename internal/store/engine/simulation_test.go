package engine_test

import (
	"flag"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// The simulation runs proxies in virtual time: the real queues, leases, policy and fallback, over a model of
// Postgres. A seed determines the limits, the number of proxies, their requests, the latency of each message,
// and the faults.
//
//   - simulation_plan_test.go: the plan of a seed. simulation_network_test.go: the network.
//   - simulation_server_test.go: the model of Postgres. simulation_answers_test.go: its results.
//   - simulation_proxy_test.go: a proxy. simulation_checks_test.go: the checks.

var (
	simSeeds = flag.Int("simulate-seeds", 10, "the number of seeds of TestSimulation")
	simFirst = flag.Uint64("simulate-first", 1, "the first seed of TestSimulation")
)

// simRun is the simulation of a seed.
type simRun struct {
	plan    *simPlan
	server  *simServer
	proxies []*simProxy

	mu          sync.Mutex // guards all that follows
	admitted    map[lease.RowID][]simAdmitted
	requests    int
	prompts     simPrompts
	checkedRows int // the number of rows that checkLeases has checked
	failures    []string
}

func (r *simRun) fail(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

// simulate runs a seed.
func simulate(t *testing.T, plan *simPlan) *simRun {
	policyLimit := &ratelimit.Limit{Prefix: "rule/plan/requests", Algorithm: ratelimit.TokenBucket,
		Events: 40, Window: 10 * time.Second, Durable: true}
	r := &simRun{plan: plan,
		server:   newSimServer([]*ratelimit.Limit{plan.contested, plan.client, policyLimit}, plan.outages),
		admitted: map[lease.RowID][]simAdmitted{}, prompts: newSimPrompts()}
	r.server.conflictRate = plan.conflictRate
	if plan.tokens != nil {
		r.server.limits[plan.tokens.Prefix] = plan.tokens
		r.server.running = r.heldByRunning
	}
	synctest.Test(t, func(t *testing.T) {
		var group sync.WaitGroup
		for n := range plan.proxies {
			p := newSimProxy(r, n)
			r.proxies = append(r.proxies, p)
			group.Go(p.sendRequests)
			if after := p.killAfter(); after > 0 {
				time.AfterFunc(after, p.kill)
			}
		}
		time.Sleep(plan.load / 2)
		// The policy changes, so that all proxies read it again.
		r.server.mu.Lock()
		r.server.changes++
		r.server.mu.Unlock()
		group.Wait()
		time.Sleep(simQuiet)
		r.checkLeases()
		if plan.tokens != nil {
			time.Sleep(simExpiry)
			r.checkSettlements()
		}
		for _, p := range r.proxies {
			group.Go(p.close)
		}
		group.Wait()
		time.Sleep(time.Minute) // until goroutines have ended and messages in transit have arrived
	})
	r.checkLimits()
	r.checkCharges()
	if plan.tokens == nil {
		r.checkStampede()
		r.checkFairness()
	}
	for i, text := range r.server.violations {
		if i < 3 {
			r.fail("%s", text)
		}
	}
	return r
}

// foundFaults are seeds that find bugs of the past: a refund went to a server that had lost the charge, a
// local decision was charged after its window had ended, and a request that had waited for the first rules
// had four more timeouts for its look-up.
var foundFaults = []uint64{16, 43, 57, 151, 468}

// For each seed, these rules must hold:
//
//   - checkLimits: while the database answers, no limit admits more hits than it allows, except for hits that
//     a lost server had charged (see isWithinDocumentedLoss).
//   - checkCharges: a counter is charged at most the cost of its admitted hits, and of messages with a lost
//     result.
//   - checkLeases: some seconds after the last request, proxies hold no leased units, and unused units are
//     refunded.
//   - checkStampede: after an outage, proxies send at most simGrowth times as many statements as before it.
//   - checkFairness: without outages, each proxy gets at least half of its share of a contested key.
//   - checkDuration: a call ends within health.MaxTimeouts timeouts, and not because of a lock or a conflict.
//   - Proxies send only statements that the model supports.
//
// To run one seed: go test -run TestSimulation -simulate-seeds 1 -simulate-first SEED.
func TestSimulation(t *testing.T) {
	n := *simSeeds
	if testing.Short() {
		n = min(n, 3)
	}
	var seeds []uint64
	for seed := *simFirst; len(seeds) < n; seed++ {
		if !raced || newSimPlan(seed).proxies < 100 { // more of them take minutes
			seeds = append(seeds, seed)
		}
	}
	if *simFirst == 1 && n == 10 {
		seeds = append(seeds, foundFaults...)
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			r := simulate(t, newSimPlan(seed))
			r.report(t)
		})
	}
}

// report fails the test with the first failures.
func (r *simRun) report(t *testing.T) {
	t.Logf("%d proxies, %d admitted, %d leased rows, outages %v", r.plan.proxies, r.requests, r.checkedRows,
		r.plan.outages)
	for i, failure := range r.failures {
		if i == 5 {
			t.Errorf("and %d more", len(r.failures)-i)
			break
		}
		t.Error(failure)
	}
}
