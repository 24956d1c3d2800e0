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

// workerEnv is the environment variable with the job of a worker process of TestProcesses, in JSON.
const workerEnv = "PG_RATELIMIT_TEST_WORKER"

func TestMain(m *testing.M) {
	if data := os.Getenv(workerEnv); data != "" {
		var j workerJob
		if err := json.Unmarshal([]byte(data), &j); err != nil {
			panic(err)
		}
		if err := json.NewEncoder(os.Stdout).Encode(j.run()); err != nil {
			panic(err)
		}
		return
	}
	os.Exit(m.Run())
}

// workerJob is the work of a worker process.
type workerJob struct {
	DSN      string
	Number   int
	Duration time.Duration
}

// workerResult is the result of a worker: the admitted cost by row, and the failures.
type workerResult struct {
	Admitted map[string]int64
	Calls    int
	Errors   []string
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

const numProcessKeys = 200

// minCalls is the minimum number of calls of each caller on a slow machine, which exhausts some quotas.
const minCalls = 100

// run opens stores with different numbers of connections and workers, and runs callers that take, peek,
// refund and reset, on several limits in one request.
func (j workerJob) run() workerResult {
	r := workerResult{Admitted: map[string]int64{}}
	var mu sync.Mutex
	fail := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		r.Errors = append(r.Errors, err.Error())
	}
	var group sync.WaitGroup
	var calls atomic.Int64 // the calls of all 16 callers
	until := time.Now().Add(j.Duration)
	lasting, churned := limitsWithoutReset(), limitsWithShortWindows()
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
				for call := 0; call < minCalls || time.Now().Before(until); call++ {
					// The keys change with the number of calls, so that some quotas are always left.
					era := int(calls.Add(1) / (2 * 16 * minCalls))
					hits, churn := drawProcessRequest(random, era, lasting, churned)
					decisions := make([]ratelimit.Decision, len(hits))
					// Two timeouts are two queues.
					err := store.Take(context.Background(),
						testTimeout+time.Duration(random.Intn(2))*time.Second, hits, decisions)
					if err != nil {
						fail(err)
						continue
					}
					allowed := allAllowed(decisions)
					mu.Lock()
					r.Calls++
					for _, h := range hits {
						if allowed && !churn {
							r.Admitted[h.Limit.Prefix+"/"+h.Key] += h.Cost
						}
					}
					mu.Unlock()
					if churn && random.Intn(20) == 0 {
						if err := store.Reset(context.Background(), testTimeout, hits); err != nil {
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

// drawProcessRequest draws a request on one to four limits. All of its limits are lasting, or all are
// churned, which churn reports. era is a part of the keys of lasting limits.
func drawProcessRequest(random *rand.Rand, era int,
	lasting, churned []*ratelimit.Limit) (hits []ratelimit.Hit, churn bool) {
	limits := slices.Clone(lasting)
	if churn = random.Intn(4) == 0; churn {
		limits = slices.Clone(churned)
	}
	random.Shuffle(len(limits), func(i, j int) { limits[i], limits[j] = limits[j], limits[i] })
	for _, l := range limits[:1+random.Intn(4)*random.Intn(2)] {
		key := fmt.Sprint(random.Intn(1 + random.Intn(numProcessKeys)))
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

// Four processes, each with two stores, take from the same rows. A cleanup runs after each batch, and
// statements of the npm library run concurrently. No statement fails or deadlocks, and each row's charge is
// the admitted cost.
func TestProcesses(t *testing.T) {
	s := newTestDB(t)
	s.exec(engine.TableSQL)
	results := startWorkers(s)
	ctx, stop := context.WithCancel(context.Background())
	others := sendLibraryStatements(ctx, s)
	admitted := map[string]int64{}
	calls := 0
	for range 4 {
		r := <-results
		for _, message := range r.Errors[:min(len(r.Errors), 5)] {
			t.Error(message)
		}
		calls += r.Calls
		for row, cost := range r.Admitted {
			admitted[row] += cost
		}
	}
	stop()
	others.Wait()
	s.awaitText("SELECT deadlocks::text FROM pg_stat_database WHERE datname = current_database()", "0")
	if calls < 200 || len(admitted) < numProcessKeys {
		t.Errorf("%d calls, on %d rows, want at least 200 and %d", calls, len(admitted), numProcessKeys)
	}
	t.Logf("%d calls, on %d rows", calls, len(admitted))
	s.checkCharges(admitted)
}

// startWorkers starts four processes, and returns a channel of their results.
func startWorkers(s *testDB) <-chan workerResult {
	self, err := os.Executable()
	if err != nil {
		s.t.Fatal(err)
	}
	duration := time.Duration(conformance.Long()) * 8 * time.Second
	results := make(chan workerResult, 4)
	for number := range 4 {
		job, err := json.Marshal(workerJob{DSN: s.dsn, Number: number, Duration: duration})
		if err != nil {
			s.t.Fatal(err)
		}
		go func() {
			cmd := exec.Command(self)
			cmd.Env = append(os.Environ(), workerEnv+"="+string(job))
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			out, err := cmd.Output()
			var r workerResult
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

// sendLibraryStatements sends statements of the npm library on four connections until ctx ends.
func sendLibraryStatements(ctx context.Context, s *testDB) *sync.WaitGroup {
	var others sync.WaitGroup
	for other := range 4 {
		conn := cluster.Connect(s.t, s.dsn)
		others.Add(1)
		go func() {
			defer others.Done()
			random := rand.New(rand.NewSource(int64(other)))
			for ctx.Err() == nil {
				for _, sql := range libraryStatements(other, random) {
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
		if err := store.Take(context.Background(), testTimeout, hits, decisions); err != nil {
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

// libraryStatements returns statements like the npm library's: one statement for a row (kind 0), or a
// transaction that locks the row (kinds 1 and 2). Kind 3 makes a row in use expire, so that a cleanup may
// delete it.
func libraryStatements(kind int, random *rand.Rand) []string {
	key := fmt.Sprint(random.Intn(numProcessKeys))
	switch kind {
	case 0:
		return []string{`INSERT INTO rate_limit_ephemeral AS r (prefix, key, count, window_start, expires_at)
			VALUES ('churnefixed_window', '` + key + `', 1, clock_timestamp(), clock_timestamp() + '20 ms')
			ON CONFLICT (prefix, key) DO UPDATE
			SET count = CASE WHEN r.expires_at < clock_timestamp() THEN 1 ELSE r.count + 1 END`}
	case 1, 2:
		where := " WHERE prefix = 'churnesliding_window' AND key = '" + key + "'"
		return []string{"BEGIN", `INSERT INTO rate_limit_ephemeral
			(prefix, key, count, prev_count, window_start, expires_at) VALUES ('churnesliding_window',
			'` + key + `', 0, 0, clock_timestamp(), clock_timestamp() + '40 ms') ON CONFLICT DO NOTHING`,
			"SELECT FROM rate_limit_ephemeral" + where + " FOR UPDATE",
			"UPDATE rate_limit_ephemeral SET count = count + 1, prev_count = 0" + where, "COMMIT"}
	}
	l := limitsWithShortWindows()[random.Intn(10)]
	return []string{fmt.Sprintf(`UPDATE rate_limit_%s SET expires_at = clock_timestamp() - '%d h'::interval,
		window_start = clock_timestamp() - '%[2]d h'::interval, hits = NULL
		WHERE prefix = '%s' AND key = '%s'`, []string{"ephemeral", "durable"}[random.Intn(2)],
		1+random.Intn(3), l.Prefix, key)}
}
