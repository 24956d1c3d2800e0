package engine_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/pgwire"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
)

// asWorker is the environment variable that makes this test binary one of the
// processes of TestProcesses: a job in JSON.
const asWorker = "PG_RATELIMIT_TEST_WORKER"

func TestMain(m *testing.M) {
	if text := os.Getenv(asWorker); text != "" {
		var j job
		if err := json.Unmarshal([]byte(text), &j); err != nil {
			panic(err)
		}
		if err := json.NewEncoder(os.Stdout).Encode(j.run()); err != nil {
			panic(err)
		}
		return
	}
	os.Exit(m.Run())
}

// job is the work of a process.
type job struct {
	DSN      string
	Number   int
	Duration time.Duration
}

// result has the cost that was admitted of each row, and the failures.
type result struct {
	Admitted map[string]int64
	Calls    int
	Errors   []string
}

// crowded are limits of all algorithms, in both tables. Their quotas do not come back while the
// test runs.
func crowded() []*ratelimit.Limit {
	var limits []*ratelimit.Limit
	for _, durable := range []bool{false, true} {
		name := map[bool]string{false: "e", true: "d"}[durable]
		for a := ratelimit.SlidingWindow; a <= ratelimit.GCRA; a++ {
			limits = append(limits,
				&ratelimit.Limit{Prefix: name + a.String(), Algorithm: a, Events: 20,
					Window: 1000 * 24 * time.Hour, Durable: durable})
		}
		limits = append(limits,
			&ratelimit.Limit{Prefix: name + "calendar", Algorithm: ratelimit.FixedWindow, Events: 20,
				Calendar: ratelimit.Year, Durable: durable})
	}
	return limits
}

// churning are limits with windows that turn all the time.
func churning() []*ratelimit.Limit {
	var limits []*ratelimit.Limit
	for _, l := range crowded() {
		if l.Calendar == ratelimit.NoCalendar {
			l.Prefix, l.Window, l.Events = "churn"+l.Prefix, 20*time.Millisecond, 5
			limits = append(limits, l)
		}
	}
	return limits
}

const crowdedKeys = 200

// leastCalls is the number of calls of each caller on a slow machine: enough to use up some quotas.
const leastCalls = 100

// run is a process: stores with different numbers of connections and workers, and callers
// that take, peek, refund and reset, on several limits at once.
func (j job) run() result {
	r := result{Admitted: map[string]int64{}}
	var mu sync.Mutex
	fail := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		r.Errors = append(r.Errors, err.Error())
	}
	var group sync.WaitGroup
	var calls atomic.Int64 // of all 16 callers
	until := time.Now().Add(j.Duration)
	lasting, churned := crowded(), churning()
	for _, workers := range []int{1 + j.Number, 8} {
		var db pgdb.DB
		var err error
		if j.Number%2 == 0 {
			db, err = pgwire.Open(j.DSN, pgwire.Options{MaxConns: min(workers, 4)})
		} else {
			db, err = pgxdb.Open(j.DSN, pgxdb.Options{MaxConns: min(workers, 4)})
		}
		if err != nil {
			fail(err)
			return r
		}
		store, err := engine.New(db, engine.Options{CleanupProbability: 1, Workers: workers, OnError: fail})
		if err != nil {
			fail(err)
			return r
		}
		defer store.Close()
		for caller := range 8 {
			group.Add(1)
			go func() {
				defer group.Done()
				random := rand.New(rand.NewSource(int64(j.Number*1000 + workers*100 + caller)))
				for call := 0; call < leastCalls || time.Now().Before(until); call++ {
					// The keys move on, so that there is always something left.
					hits, churn := drawCrowded(random, int(calls.Add(1)/(2*16*leastCalls)), lasting, churned)
					decisions := make([]ratelimit.Decision, len(hits))
					// Two timeouts are two queues.
					err := store.Take(context.Background(),
						longTime+time.Duration(random.Intn(2))*time.Second, hits, decisions)
					if err != nil {
						fail(err)
						continue
					}
					all := true
					for _, d := range decisions {
						all = all && d.Allowed
					}
					mu.Lock()
					r.Calls++
					for _, h := range hits {
						if all && !churn {
							r.Admitted[h.Limit.Prefix+"/"+h.Key] += h.Cost
						}
					}
					mu.Unlock()
					if churn && random.Intn(20) == 0 {
						if err := store.Reset(context.Background(), longTime, hits); err != nil {
							fail(err)
						}
					}
				}
			}()
		}
	}
	group.Wait()
	return r
}

// drawCrowded draws a request: of one to four limits that last, or that churn. Requests often
// have a limit and a cost in common, and often not.
func drawCrowded(random *rand.Rand, era int, lasting, churned []*ratelimit.Limit) (hits []ratelimit.Hit,
	churn bool) {
	limits := slices.Clone(lasting)
	if churn = random.Intn(4) == 0; churn {
		limits = slices.Clone(churned)
	}
	random.Shuffle(len(limits), func(i, j int) { limits[i], limits[j] = limits[j], limits[i] })
	for _, l := range limits[:1+random.Intn(4)*random.Intn(2)] {
		h := ratelimit.Hit{Limit: l, Key: fmt.Sprintf("%d/%d", era, random.Intn(1+random.Intn(crowdedKeys))),
			Cost: 1 + random.Int63n(2)*random.Int63n(8)}
		if churn {
			h.Key = fmt.Sprint(random.Intn(1 + random.Intn(crowdedKeys)))
			if h.Cost = random.Int63n(8) - 2; h.Cost == 0 {
				h.Cost, h.Peek = 1, true
			}
		}
		hits = append(hits, h)
	}
	return hits, churn
}

// TestProcesses lets four processes, each with two stores, take from the same
// rows, with a cleanup after each statement, and others' statements in between:
// no deadlock, no error, and each row was charged what was admitted of it.
func TestProcesses(t *testing.T) {
	s := newSite(t)
	s.exec(engine.TableSQL)
	results := startWorkers(s)
	ctx, stop := context.WithCancel(context.Background())
	others := sendAsTheLibrary(ctx, s)
	admitted := map[string]int64{}
	calls := 0
	for range 4 {
		r := <-results
		for _, text := range r.Errors[:min(len(r.Errors), 5)] {
			t.Error(text)
		}
		calls += r.Calls
		for row, cost := range r.Admitted {
			admitted[row] += cost
		}
	}
	stop()
	others.Wait()
	if deadlocks := s.text("SELECT deadlocks::text FROM pg_stat_database WHERE datname = " +
		"current_database()"); deadlocks != "0" {
		t.Errorf("%s deadlocks", deadlocks)
	}
	if calls < 200 || len(admitted) < crowdedKeys {
		t.Errorf("only %d calls, on %d rows", calls, len(admitted))
	}
	t.Logf("%d calls, on %d rows", calls, len(admitted))
	s.charged(admitted)
}

// startWorkers starts four processes.
func startWorkers(s *site) <-chan result {
	self, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	duration := time.Duration(conformance.Long()) * 8 * time.Second
	results := make(chan result, 4)
	for number := range 4 {
		text, err := json.Marshal(job{DSN: s.dsn, Number: number, Duration: duration})
		if err != nil {
			s.t.Fatal(err)
		}
		go func() {
			cmd := exec.Command(self)
			cmd.Env = append(os.Environ(), asWorker+"="+string(text))
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			var r result
			if err == nil {
				err = json.Unmarshal(out, &r)
			}
			if err != nil {
				r.Errors = append(r.Errors, err.Error(), stderr.String())
			}
			results <- r
		}()
	}
	return results
}

// sendAsTheLibrary sends others' statements on four connections until ctx ends.
func sendAsTheLibrary(ctx context.Context, s *site) *sync.WaitGroup {
	var others sync.WaitGroup
	for other := range 4 {
		conn := cluster.Connect(s.t, s.dsn)
		others.Add(1)
		go func() {
			defer others.Done()
			random := rand.New(rand.NewSource(int64(other)))
			for ctx.Err() == nil {
				for _, sql := range likeTheLibrary(other, random) {
					if _, err := conn.Exec(context.Background(), sql); err != nil {
						s.t.Errorf("%s: %v", sql, err)
						return
					}
				}
			}
		}()
	}
	return &others
}

// charged compares what was admitted with what the tables say.
func (s *site) charged(admitted map[string]int64) {
	s.t.Helper()
	store := s.store(engine.Options{CleanupProbability: -1})
	used := 0
	for _, l := range crowded() {
		var hits []ratelimit.Hit
		for row := range admitted {
			if key, ok := strings.CutPrefix(row, l.Prefix+"/"); ok {
				hits = append(hits, ratelimit.Hit{Limit: l, Key: key, Cost: 1, Peek: true})
			}
		}
		if len(hits) == 0 {
			s.t.Errorf("nothing was admitted of %s", l.Prefix)
			continue
		}
		decisions := make([]ratelimit.Decision, len(hits))
		if err := store.Take(context.Background(), longTime, hits, decisions); err != nil {
			s.t.Fatal(err)
		}
		for i, h := range hits {
			cost := admitted[l.Prefix+"/"+h.Key]
			if cost > l.Events || decisions[i].Remaining != l.Events-cost {
				s.t.Errorf("%s %s: %d of %d were admitted, and %d are left", l.Prefix, h.Key, cost, l.Events,
					decisions[i].Remaining)
			}
			if decisions[i].Remaining == 0 {
				used++
			}
		}
	}
	if used == 0 {
		s.t.Error("no quota was used up")
	}
}

// likeTheLibrary are statements of the shape that the npm library sends: one row
// in one statement, or locked in a transaction. The last kind makes rows that a
// cleanup may delete, out of those that are in use.
func likeTheLibrary(kind int, random *rand.Rand) []string {
	key := fmt.Sprint(random.Intn(crowdedKeys))
	where := " WHERE prefix = 'churnesliding_window' AND key = '" + key + "'"
	switch kind {
	case 0:
		return []string{`INSERT INTO rate_limit_ephemeral AS r (prefix, key, count, window_start, expires_at)
			VALUES ('churnefixed_window', '` + key + `', 1, clock_timestamp(), clock_timestamp() + interval
			'20 ms')
			ON CONFLICT (prefix, key) DO UPDATE SET count = CASE WHEN r.expires_at < clock_timestamp() THEN
			1 ELSE r.count + 1 END`}
	case 1, 2:
		return []string{"BEGIN", `INSERT INTO rate_limit_ephemeral (prefix, key, count, prev_count,
			window_start, expires_at)
			VALUES ('churnesliding_window', '` + key + `', 0, 0, clock_timestamp(), clock_timestamp() +
			interval '40 ms') ON CONFLICT DO NOTHING`,
			"SELECT FROM rate_limit_ephemeral" + where + " FOR UPDATE",
			"UPDATE rate_limit_ephemeral SET count = count + 1, prev_count = 0" + where, "COMMIT"}
	}
	old := "interval '1 hour' * " + fmt.Sprint(1+random.Intn(3))
	return []string{`UPDATE rate_limit_` + []string{"ephemeral", "durable"}[random.Intn(2)] +
		` SET expires_at = clock_timestamp() - ` + old + `, window_start = clock_timestamp() - ` + old +
		`, hits = NULL WHERE prefix = '` + churning()[random.Intn(10)].Prefix + `' AND key = '` + key + `'`}
}
