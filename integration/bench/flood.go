package main

import (
	"log"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// floodResult is what invented API keys do to users with real ones: through Caddy, and in a
// process without a proxy, which can take more of them.
type floodResult struct{ caddy, core *flood }

// flood compares the p99 of users, in milliseconds, in each round: while nothing else is sent,
// while mistyped keys are sent, which need no database, and while as many invented keys are
// sent, which only the database can tell from others.
type flood struct {
	alone, mistyped, invented []float64
	rate                      []float64 // the invented keys that were answered, a second
	statements                []float64 // a second, while invented keys are sent, that look up keys
	wrong                     int       // answers that were not as they must be
}

const (
	floodSeconds  = 4       // for which each of them is sent in a round
	floodUsers    = 1000.0  // requests of users a second
	floodCaddy    = 5000.0  // invented keys a second through Caddy, which leave some of two cores free
	floodCore     = 50000.0 // invented keys a second without a proxy
	floodCallers  = 1000
	floodPatience = 10 * time.Second
)

// floodLoad is a load of users, beside which other keys may be sent. It returns the p99 of
// users in milliseconds, and how many of the other keys were answered.
type floodLoad func(keys []string) (p99 float64, answered int)

// measureFlood measures both.
func (b *bench) measureFlood() {
	if !b.wants(nameFlood) {
		return
	}
	p := b.startProxy(policyCaddy)
	b.flood = &floodResult{caddy: b.floodCaddy(p), core: b.floodCore(p.dsn)}
}

// run measures all rounds. lookUps returns how many statements have looked up keys so far.
func (f *flood) run(b *bench, name string, rate float64, load floodLoad, lookUps func() float64) {
	load(nil) // which looks the users up
	for round := range b.rounds {
		invented := inventedKeys(int(rate * floodSeconds))
		mistyped := make([]string, len(invented))
		for i, key := range invented {
			mistyped[i] = key[:len(key)-1] + "-" // which no checksum has
		}
		alone, _ := load(nil)
		others, _ := load(mistyped)
		before, began := lookUps(), time.Now()
		flooded, answered := load(invented)
		took := time.Since(began).Seconds()
		f.alone, f.mistyped, f.invented = append(f.alone, alone), append(f.mistyped, others), append(f.invented, flooded)
		f.rate = append(f.rate, float64(answered)/took)
		f.statements = append(f.statements, (lookUps()-before)/took)
		log.Printf("round %d of %d: invented keys, %s: p99 of users %.2f ms alone, %.2f ms with mistyped keys, %.2f ms with invented keys", round+1, b.rounds, name, alone, others, flooded)
	}
}

// floodCaddy sends the loads to a Caddy.
func (b *bench) floodCaddy(p *proxy) *flood {
	f := &flood{}
	load := func(keys []string) (p99 float64, answered int) {
		var others pacedResult
		var failure error
		var group sync.WaitGroup
		if len(keys) > 0 {
			group.Go(func() {
				others, failure = pacedLoad{
					address: p.address, rate: floodCaddy, requests: len(keys), keys: len(keys), connections: 256, status: 401,
					name: func(n int) string { return keys[n] },
				}.run(b.ctx)
			})
		}
		users, err := pacedLoad{address: p.address, rate: floodUsers, requests: floodSeconds * floodUsers, keys: someZipf.count, atRandom: true}.run(b.ctx)
		group.Wait()
		check(failure)
		check(err)
		f.wrong += others.refused + users.refused
		return microseconds(users.p99) / 1000, len(keys)
	}
	f.run(b, "Caddy", floodCaddy, load, func() float64 { return b.metric(p, "caddy_pg_ratelimit_policy_lookups_total") })
	return f
}

// floodCore sends the loads to a policy and a store in this process.
func (b *bench) floodCore(dsn string) *flood {
	f := &flood{}
	db := must(pgxdb.Open(dsn, pgxdb.Options{}))
	store := must(postgres.New(db, postgres.Options{}))
	defer store.Close()
	live := must(policy.New(db, policy.Settings{DisableMigration: true}))
	defer live.Close()
	decide := func(key string, o *policy.Outcome) error {
		facts := policy.Facts{Tier: "anonymous", RejectUnknown: true, Method: "GET", Host: "localhost", Path: "/"}
		return live.Decide(b.ctx, floodPatience, key, "", &facts, o)
	}
	var wrong atomic.Int64
	user := func(caller, turn int) {
		var o policy.Outcome
		decisions := make([]ratelimit.Decision, 1)
		err := decide(keyName((caller+turn*connections)%someZipf.count), &o)
		if err != nil || len(o.Hits) != 1 || store.Take(b.ctx, floodPatience, o.Hits, decisions) != nil || !decisions[0].Allowed {
			wrong.Add(1)
		}
	}
	load := func(keys []string) (p99 float64, answered int) {
		var next atomic.Int64
		var group sync.WaitGroup
		if len(keys) > 0 {
			group.Go(func() {
				atPace(floodCallers, floodCore, func(_, _ int) {
					var o policy.Outcome
					if err := decide(keys[int(next.Add(1)-1)%len(keys)], &o); err != nil || o.Reason != policy.UnknownKey {
						wrong.Add(1)
					}
				})
			})
		}
		latencies := atPace(connections, floodUsers, user)
		group.Wait()
		return microseconds(latencies[len(latencies)*99/100]) / 1000, int(next.Load())
	}
	f.run(b, "no proxy", floodCore, load, func() float64 { return float64(live.Stats().LookUps) })
	f.wrong = int(wrong.Load())
	return f
}

// atPace calls do from many callers, so many times a second together, and returns how long
// after its planned time each call was over, sorted. A caller that is late skips nothing.
func atPace(callers int, rate float64, do func(caller, turn int)) []time.Duration {
	all := make([][]time.Duration, callers)
	pause := time.Duration(float64(callers) / rate * float64(time.Second))
	began := time.Now()
	var group sync.WaitGroup
	for c := range callers {
		group.Go(func() {
			due := began.Add(pause * time.Duration(c) / time.Duration(callers))
			for turn := 0; time.Since(began) < floodSeconds*time.Second; turn++ {
				time.Sleep(time.Until(due))
				do(c, turn)
				all[c] = append(all[c], time.Since(due))
				due = due.Add(pause)
			}
		})
	}
	group.Wait()
	return slices.Sorted(slices.Values(slices.Concat(all...)))
}
