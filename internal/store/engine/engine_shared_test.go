package engine_test

import (
	"context"
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// The contenders are stores with the same rows, each with its own connections, and callers of each store.
const (
	contendingStores = 8
	callersPerStore  = 8
	contendedKeys    = 200
	// minCalls is the minimum number of calls of each caller on a slow machine, which exhausts some quotas.
	minCalls = 100
)

// Eight stores, like those of eight processes, take from the same rows. Meanwhile a cleanup runs after each
// batch, and rows expire. No statement fails or deadlocks, and the charge of each row is the admitted cost.
func TestStoresShareQuotas(t *testing.T) {
	s := newTestDB(t)
	s.exec(engine.TableSQL)
	ctx, stop := context.WithCancel(t.Context())
	others := expireRows(ctx, s)
	c := &contention{lasting: limitsWithoutReset(), churned: limitsWithShortWindows(),
		until:    time.Now().Add(4 * time.Second),
		admitted: map[string]int64{}}
	var group sync.WaitGroup
	for n := range contendingStores {
		workers := []int{1 + n/2, 8}[n%2]
		db := drivers.All[[]string{"pgwire", "pgxdb"}[n/2%2]](t,
			fmt.Sprint(s.dsn, "&pool_max_conns=", min(workers, 4)))
		store := s.openEngineOn(db, engine.Options{CleanupProbability: 1, Workers: workers})
		for caller := range callersPerStore {
			random := rand.New(rand.NewSource(int64(n*callersPerStore + caller)))
			group.Go(func() { c.send(t, store, random) })
		}
	}
	group.Wait()
	stop()
	others.Wait()
	s.requireNoReports()
	s.awaitText("SELECT deadlocks::text FROM pg_stat_database WHERE datname = current_database()", "0")
	t.Logf("%d calls, on %d rows", c.calls.Load(), len(c.admitted))
	if len(c.admitted) < contendedKeys {
		t.Errorf("calls on %d rows, want at least %d", len(c.admitted), contendedKeys)
	}
	s.checkCharges(c.admitted)
}

// contention counts what all stores admit.
type contention struct {
	lasting, churned []*ratelimit.Limit
	until            time.Time
	calls            atomic.Int64

	mu       sync.Mutex
	admitted map[string]int64 // the cost, by row of a limit without reset
}

// send sends calls that take, peek, refund and reset, on several limits in one request.
func (c *contention) send(t *testing.T, store ratelimit.Store, random *rand.Rand) {
	for call := 0; call < minCalls || time.Now().Before(c.until); call++ {
		// The keys change with the number of calls, so that some quotas are always left.
		era := int(c.calls.Add(1) / (2 * minCalls * contendingStores * callersPerStore))
		hits, churn := c.draw(random, era)
		decisions := make([]ratelimit.Decision, len(hits))
		// Two timeouts are two queues.
		timeout := testTimeout + time.Duration(random.Intn(2))*time.Second
		if err := store.Take(t.Context(), timeout, hits, decisions); err != nil {
			t.Error(err)
			return
		}
		if !churn && allAllowed(decisions) {
			c.mu.Lock()
			for _, h := range hits {
				c.admitted[h.Limit.Prefix+"/"+h.Key] += h.Cost
			}
			c.mu.Unlock()
		}
		if churn && random.Intn(20) == 0 {
			if err := store.Reset(t.Context(), testTimeout, hits); err != nil {
				t.Error(err)
			}
		}
	}
}

// draw draws a request on one to four limits: either all from limitsWithoutReset, or all from
// limitsWithShortWindows, and then churn is true. era is a part of the keys of the former.
func (c *contention) draw(random *rand.Rand, era int) (hits []ratelimit.Hit, churn bool) {
	limits := slices.Clone(c.lasting)
	if churn = random.Intn(4) == 0; churn {
		limits = slices.Clone(c.churned)
	}
	random.Shuffle(len(limits), func(i, j int) { limits[i], limits[j] = limits[j], limits[i] })
	for _, l := range limits[:1+random.Intn(4)*random.Intn(2)] {
		key := fmt.Sprint(random.Intn(1 + random.Intn(contendedKeys)))
		h := ratelimit.Hit{Limit: l, Key: fmt.Sprint(era, "/", key),
			Cost: 1 + random.Int63n(2)*random.Int63n(8)}
		if churn {
			h.Key = key
			if h.Cost = random.Int63n(8) - 2; h.Cost == 0 {
				h.Cost, h.Peek = 1, true
			}
		}
		hits = append(hits, h)
	}
	return hits, churn
}

// limitsWithoutReset returns limits of all algorithms, in both tables, with quotas that do not come back
// during the test.
func limitsWithoutReset() []*ratelimit.Limit {
	var limits []*ratelimit.Limit
	for _, durable := range []bool{false, true} {
		for _, l := range conformance.Limits(map[bool]string{false: "e", true: "d"}[durable], 20) {
			l.Durable = durable
			if l.Calendar == ratelimit.NoCalendar {
				l.Window = 1000 * 24 * time.Hour
			}
			limits = append(limits, l)
		}
	}
	return limits
}

// limitsWithShortWindows returns limits with windows of 20 ms, in both tables.
func limitsWithShortWindows() []*ratelimit.Limit {
	var limits []*ratelimit.Limit
	for _, l := range limitsWithoutReset() {
		if l.Calendar == ratelimit.NoCalendar {
			l.Prefix, l.Window, l.Events = "churn"+l.Prefix, 20*time.Millisecond, 5
			limits = append(limits, l)
		}
	}
	return limits
}

// expireRows makes rows in use expire until ctx ends, so that cleanups delete them.
func expireRows(ctx context.Context, s *testDB) *sync.WaitGroup {
	var running sync.WaitGroup
	random, limits := rand.New(rand.NewSource(0)), limitsWithShortWindows()
	running.Go(func() {
		for ctx.Err() == nil {
			l := limits[random.Intn(len(limits))]
			table := map[bool]string{false: "ephemeral", true: "durable"}[l.Durable]
			s.exec(fmt.Sprintf(`UPDATE rate_limit_%s SET expires_at = clock_timestamp() - '%d h'::interval,
				window_start = clock_timestamp() - '%[2]d h'::interval, hits = NULL
				WHERE prefix = '%s' AND key = '%d'`, table, 1+random.Intn(3), l.Prefix,
				random.Intn(contendedKeys)))
		}
	})
	return &running
}

// checkCharges fails the test unless the charge of each row is its admitted cost.
func (s *testDB) checkCharges(admitted map[string]int64) {
	s.t.Helper()
	store := s.openEngine(engine.Options{CleanupProbability: -1})
	used := 0
	for _, l := range limitsWithoutReset() {
		var hits []ratelimit.Hit
		for row := range admitted {
			if key, ok := strings.CutPrefix(row, l.Prefix+"/"); ok {
				hits = append(hits, ratelimit.Hit{Limit: l, Key: key, Cost: 1, Peek: true})
			}
		}
		if len(hits) == 0 {
			s.t.Errorf("%s: admitted no hits, want some", l.Prefix)
			continue
		}
		decisions := make([]ratelimit.Decision, len(hits))
		if err := store.Take(s.t.Context(), testTimeout, hits, decisions); err != nil {
			s.t.Fatal(err)
		}
		for i, h := range hits {
			cost := admitted[l.Prefix+"/"+h.Key]
			if cost > l.Events || decisions[i].Remaining != l.Events-cost {
				s.t.Errorf("%s %s: %d of %d units admitted and %d left, want %d left", l.Prefix, h.Key, cost,
					l.Events, decisions[i].Remaining, l.Events-cost)
			}
			if decisions[i].Remaining == 0 {
				used++
			}
		}
	}
	if used == 0 {
		s.t.Error("0 quotas are exhausted, want some")
	}
}
