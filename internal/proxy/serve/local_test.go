package serve

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/respond"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	stores "github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/store/registry"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/fakedb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// No client is billed for overage without the database, because the proxy then only estimates how much all
// proxies have charged.
func TestNoOverageWithoutDatabase(t *testing.T) {
	store, err := stores.Open(fakedb.Down, engine.Options{CleanupProbability: -1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	site := &Site{Store: store, Handler: settings.Handler{Timeout: time.Second, OnError: settings.Local}}
	site.Prepare()
	store.SetProxies(10)
	hits := []ratelimit.Hit{{Limit: &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow,
		Events: 1000, Window: time.Hour}, Key: "k", Cost: 1}}
	terms := []*policy.Terms{{Overage: true, Quota: 5}}
	for i := range 3 { // each hit counts as ten: nine other proxies may have one each
		decisions := make([]ratelimit.Decision, 1)
		q := &Request{Site: site, Hits: hits, Terms: terms}
		Take(q)
		q.Decisions = decisions
		o := TakeLocal(site, q, q.Err)
		got := fmt.Sprintf("status %d, overage %d, from %v, error %v", o.Status, o.Overage,
			decisions[0].Source, o.Err)
		if want := "status 0, overage 0, from memory, error <nil>"; got != want {
			t.Errorf("request %d: %s, want %s", i, got, want)
		}
	}
}

// A database that is silent from the start costs a request one timeout, although the policy and the store
// both need the database.
func TestSilentDatabaseCostsOneTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, err := stores.Open(fakedb.Silent, engine.Options{CleanupProbability: -1}, nil)
		if err != nil {
			t.Fatal(err)
		}
		rules := policy.New(fakedb.Silent, policy.Settings{Health: store.Health()})
		defer store.Close()
		defer rules.Close()
		const timeout = 250 * time.Millisecond
		start := time.Now()
		failure := rules.Evaluate(t.Context(), timeout, "", "ann", &policy.Facts{}, &policy.Verdict{})
		err = store.Take(t.Context(), timeout, []ratelimit.Hit{{Limit: &ratelimit.Limit{Prefix: "p",
			Events: 1, Window: time.Hour}, Key: "k", Cost: 1}}, make([]ratelimit.Decision, 1))
		if took := time.Since(start); failure == nil || err == nil || took != timeout {
			t.Errorf("policy: %v, store: %v, after %v; want errors after %v", failure, err, took, timeout)
		}
	})
}

// A settlement has the times of the database. A client gets the times of the proxy, which is an hour behind.
func TestSettlementHasTimesOfDatabase(t *testing.T) {
	reset := time.Now().Add(time.Hour)
	q := &Request{Site: &Site{Clock: &respond.Clock{}, Node: &registry.Node{}},
		usesStore: true,
		Limits:    &LimitSet{Settles: true},
		Terms:     []*policy.Terms{{CostSource: &option.CostSource{Bytes: true}}},
		Hits:      []ratelimit.Hit{{Limit: &ratelimit.Limit{}, Cost: 1}},
		Decisions: []ratelimit.Decision{{Allowed: true, DecidedAt: reset.UnixMicro(), Reset: reset}}}
	q.HTTP = &http.Request{}
	now := time.Now()
	finishInFull(now, q.Site.Clock.Ahead(q.Decisions, now), q)
	if got := q.Settling.hits[0].Reset; got != reset.UnixMicro() || !q.Decisions[0].Reset.Before(reset) {
		t.Errorf("reset %d for the database, %v for a client; want %v", got, q.Decisions[0].Reset, reset)
	}
}
