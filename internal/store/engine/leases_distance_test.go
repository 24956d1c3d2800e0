package engine_test

import (
	"fmt"
	"hash/maphash"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// region is a group of proxies at a distance from the database.
type region struct {
	delay time.Duration // the round trip time to the database
	store *engine.Engine
}

// subject is a key with counts of its requests.
type subject struct {
	key      string
	rate     float64 // hits per second, the sum of all regions
	requests atomic.Int64
	waited   atomic.Int64 // requests that waited for a round trip to another region
	passed   atomic.Int64 // requests that were allowed
}

// distanceWindow is the window of the limits in TestLeasesAcrossRegions. The test lasts for distanceWindows.
const (
	distanceWindow  = time.Minute
	distanceWindows = 2
)

// Three regions share limits in the database of the first region, in the virtual time of the simulation. If
// the demand of the subjects is twice their limit, the limit is used up, and not exceeded over all windows
// together. (TestLeasesNeverExceedLimit and TestSimulation check each window.) If the demand is half of the
// limit, few requests wait for a round trip to another region.
func TestLeasesAcrossRegions(t *testing.T) {
	for _, a := range []ratelimit.Algorithm{ratelimit.FixedWindow, ratelimit.SlidingWindow} {
		for _, c := range []struct {
			perSecond int64
			demand    float64
		}{{perSecond: 10, demand: 2}, {perSecond: 100, demand: 0.5}, {perSecond: 1000, demand: 2}} {
			for _, lonely := range []bool{false, true} {
				if c.perSecond > 100 && (testing.Short() || raced || lonely || a != ratelimit.SlidingWindow) {
					continue // it has the requests of all others, ten times
				}
				name := fmt.Sprintf("%v, %d per second, demand for %v of it", a, c.perSecond, c.demand)
				if lonely {
					name += ", all demand at 150ms"
				}
				t.Run(name, func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						checkLeasesOverDistance(t, a, c.perSecond, c.demand, lonely)
						time.Sleep(time.Minute) // until all goroutines have ended
					})
				})
			}
		}
	}
}

func checkLeasesOverDistance(t *testing.T, a ratelimit.Algorithm, perSecond int64, demand float64,
	lonely bool) {
	events := perSecond * int64(distanceWindow/time.Second)
	limit := &ratelimit.Limit{Prefix: "far", Algorithm: a, Events: events, Window: distanceWindow,
		Lease: 0.05}
	server := newSimServer([]*ratelimit.Limit{limit}, nil)
	seed := chance(perSecond)
	regions := []*region{{delay: 0}, {delay: 80 * time.Millisecond}, {delay: 150 * time.Millisecond}}
	for i, r := range regions {
		db := &simDB{server: server, plan: &simPlan{meanJitter: time.Millisecond}, proxy: i,
			chance: seed.with(1, int64(i)), minLatency: r.delay / 2}
		hash := func(_ maphash.Seed, key string) uint64 { return uint64(seed.with(3).withText(key)) }
		r.store = newEngine(t, db, engine.Options{DisableMigration: true,
			Random: seed.with(2, int64(i)).float, Hash: hash})
	}
	var subjects []*subject
	for i := range 10 {
		subjects = append(subjects,
			&subject{key: fmt.Sprint("subject", i), rate: demand * float64(perSecond) / float64(i+1)})
	}
	ends := time.Now().Add(distanceWindow * distanceWindows)
	var running sync.WaitGroup
	for n, s := range subjects {
		for i, r := range regions {
			share := []float64{0.2, 0.3, 0.5}[i]
			if lonely {
				share = []float64{0, 0, 1}[i]
			}
			if share > 0 {
				running.Go(func() {
					sendLoad(t, &running, s, r, limit, seed.with(4, int64(n), int64(i)),
						s.rate*share, ends)
				})
			}
		}
	}
	running.Wait()
	var requests, waited int64
	used := 1.0
	for _, s := range subjects {
		n, far := s.requests.Load(), s.waited.Load()
		if s.rate > 10 {
			requests, waited = requests+n, waited+far
		}
		quota := float64(limit.Events) * float64(distanceWindows)
		if s.rate >= demand*float64(perSecond) {
			used = float64(s.passed.Load()) / quota
		}
		if bound := limit.Events * (distanceWindows + 1); s.passed.Load() > bound {
			t.Errorf("%s: %d passed in %d windows, want at most %d", s.key, s.passed.Load(), distanceWindows,
				bound)
		}
	}
	share := float64(waited) / float64(requests)
	t.Logf("%.1f %% of %d requests of keys with more than 10/s waited for the distance; %.1f %% of the "+
		"quota of the busiest key was used", 100*share, requests, 100*used)
	if demand < 1 && share > 0.1 {
		t.Errorf("%.1f %% of the requests waited for the distance, want at most 10 %%", 100*share)
	}
	if demand > 1 && lonely && used < 0.99 {
		t.Errorf("%.1f %% of the quota was used, want at least 99 %%", 100*used)
	}
}

// sendLoad sends hits of a key to a region's store at random times. It does not wait for the decisions.
func sendLoad(t *testing.T, running *sync.WaitGroup, s *subject, r *region, limit *ratelimit.Limit, c chance,
	rate float64, ends time.Time) {
	mean := time.Duration(float64(time.Second) / rate)
	for n := int64(0); time.Now().Before(ends); n++ {
		time.Sleep(c.with(n).duration(mean))
		running.Go(func() {
			decisions := make([]ratelimit.Decision, 1)
			err := r.store.Take(t.Context(), 20*time.Second,
				[]ratelimit.Hit{{Limit: limit, Key: s.key, Cost: 1}}, decisions)
			if err != nil {
				t.Error(err)
				return
			}
			s.requests.Add(1)
			if r.delay > 0 && decisions[0].Source == ratelimit.FromPostgres {
				s.waited.Add(1)
			}
			if decisions[0].Allowed {
				s.passed.Add(1)
			}
		})
	}
}
