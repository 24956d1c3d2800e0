//go:build soak

package integration

import (
	"context"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

var (
	soakDuration = flag.Duration("soak-duration", 10*time.Minute, "how long TestSoak lasts")
	soakSeed     = flag.Uint64("soak-seed", 0, "the seed of TestSoak's plan of faults; 0 is the time")
)

const (
	soakEvery  = 20 * time.Second // the time from one fault to the next
	soakAttack = 5 * time.Second  // the time for which attackers send requests to each proxy at the end
)

// soak is a long run of two Caddies and a Traefik, with faults.
type soak struct {
	t           *testing.T
	servers     *soakServers
	proxies     []*controlledProxy
	load        *soakLoad
	events      []*event
	grown       [soakProxies]growth
	unexplained []*oddResponse // responses without a decision that no fault explains
}

// A fault occurs every 20 s. All responses are right, or explained by a fault. No key admits more than its
// quota and what a fault may add, the history has each request once, and no proxy uses more and more memory.
// At the end, attackers send requests. The test prints its seed and its plan of faults, which depends only on
// the seed and the duration.
func TestSoak(t *testing.T) {
	seed := *soakSeed
	if seed == 0 {
		seed = uint64(time.Now().Unix())
	}
	s := &soak{t: t, events: plan(seed, *soakDuration)}
	fmt.Printf("soak: seed %d, %v\n", seed, *soakDuration)
	for _, e := range s.events {
		fmt.Println(e)
	}
	s.servers = startSoakServers(t)
	cluster.Execute(t, s.servers.dsn, schema.File)
	cluster.Execute(t, s.servers.dsn, fmt.Sprintf(`
		INSERT INTO rate_limit_tiers (tier) VALUES ('free') ON CONFLICT DO NOTHING;
		INSERT INTO rate_limit_users (user_id, tier) SELECT i::text, 'free' FROM generate_series(0, %d) AS i;
		INSERT INTO rate_limit_users (user_id, tier) VALUES ('%s', 'free'), ('mallory', 'free');
		INSERT INTO rate_limit_bans (user_id) VALUES ('mallory');
		SELECT rate_limit_rule('plan', tiers => '{free}', algorithm => 'fixed_window', per_hour => 100,
		durable => true);
		UPDATE rate_limit_rule_limits SET per = '364 days';`, 2*(*soakDuration)/keyLife+100, forever)+
		attackRules)
	s.load = newSoakLoad()
	upstream := s.load.upstream(t)
	s.proxies = startSoakProxies(t, s.servers.proxied, upstream)
	for _, p := range s.proxies {
		s.load.urls = append(s.load.urls, p.url)
	}
	awaitPolicyApplied(t, s.servers.dsn, soakProxies)
	if _, err := s.servers.restoreServers(); err != nil {
		t.Fatal(err)
	}
	s.load.began = time.Now()
	ctx, cancel := context.WithCancel(t.Context())
	defer s.load.running.Wait()
	defer cancel()
	s.load.run(ctx)
	recovered := time.Duration(0)
	for _, e := range s.events {
		s.sleepUntil(max(e.at, recovered))
		s.sample()
		s.injectFault(e)
		recovered = e.ended + 2*exactWithin
	}
	s.sleepUntil(max(*soakDuration, recovered))
	s.sample()
	cancel()
	s.load.running.Wait()
	fmt.Printf("soak: seed %d: %d requests, %v, the slowest took %v\n", seed, s.load.sent, s.load.statuses,
		s.load.slowest.Round(time.Millisecond))
	s.judgeResponses()
	s.judgeAdmissions()
	s.judgeFlights()
	s.judgeHistory()
	for i := range s.proxies {
		s.judgeGrowth(i)
	}
	s.attack()
}

func (s *soak) sleepUntil(at time.Duration) { time.Sleep(time.Until(s.load.began.Add(at))) }

// injectFault causes a fault, and waits until the servers have recovered.
func (s *soak) injectFault(e *event) {
	e.began = time.Since(s.load.began)
	err := e.fault.do(s, e)
	if err == nil {
		e.crashes, err = s.servers.restoreServers()
	}
	e.ended = time.Since(s.load.began)
	if err != nil {
		s.t.Fatalf("%v: %v", e, err)
	}
	fmt.Printf("%6v  %s took %v, %d crashes\n", e.began.Round(100*time.Millisecond), e.fault.name,
		(e.ended - e.began).Round(time.Millisecond), e.crashes)
}
