package postgres_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"os/exec"
	"os/signal"
	"sort"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// asLeaseWorker is the environment variable that makes this test binary one of the processes of
// TestLeasedProcesses: the DSN.
const asLeaseWorker = "PG_RATELIMIT_TEST_LEASE_WORKER"

// leasedLimits are the limits of TestLeasedProcesses.
func leasedLimits() []*ratelimit.Limit {
	var limits []*ratelimit.Limit
	for _, a := range leasable {
		for _, durable := range []bool{false, true} {
			prefix := fmt.Sprint(a, "-", durable)
			limits = append(limits,
				&ratelimit.Limit{Prefix: prefix + "-long", Algorithm: a, Events: 30000, Window: time.Hour, Lease: 0.05, Durable: durable},
				&ratelimit.Limit{Prefix: prefix + "-short", Algorithm: a, Events: 3000, Window: 2 * time.Second, Lease: 0.05, Durable: durable},
				&ratelimit.Limit{Prefix: prefix + "-reset", Algorithm: a, Events: 1000, Window: time.Hour, Lease: 0.05, Durable: durable})
		}
	}
	return limits
}

// slot is the time in which admissions are counted together.
const slot = 10 * time.Millisecond

// tally is how many hits of a key passed in a slot: their calls began and ended in it. Reset is
// that of the decisions. Slow are calls that did not end in the slot in which they began.
type tally struct {
	Prefix, Key string
	Slot, Reset int64
	N           int64
	Slow        bool
}

// runLeaseWorker sends hits until it gets SIGTERM, and prints what passed while it does so. Every half
// second it makes its limits anew, as a reload does.
func runLeaseWorker(dsn string) error {
	db, err := pgxdb.Open(dsn, pgxdb.Options{MaxConns: 4})
	if err != nil {
		return err
	}
	store, err := postgres.New(db, postgres.Options{OnError: func(err error) { fmt.Fprintln(os.Stderr, err) }})
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var mu sync.Mutex
	counts := map[tally]int64{}
	out := json.NewEncoder(os.Stdout)
	flush := func() {
		mu.Lock()
		defer mu.Unlock()
		for key, n := range counts {
			key.N = n
			_ = out.Encode(key)
		}
		counts = map[tally]int64{}
	}
	var group sync.WaitGroup
	for caller := range 8 {
		group.Add(1)
		go func() {
			defer group.Done()
			random := rand.New(rand.NewSource(int64(os.Getpid()*100 + caller)))
			limits, made := leasedLimits(), time.Now()
			decisions := make([]ratelimit.Decision, 1)
			for ctx.Err() == nil {
				if time.Since(made) > time.Second/2 {
					limits, made = leasedLimits(), time.Now()
				}
				at := random.Intn(len(limits))
				if random.Intn(3) == 0 {
					at -= at % 3 // the long ones have more to give
				}
				h := ratelimit.Hit{Limit: limits[at], Key: "hot", Cost: 1}
				if random.Intn(8) == 0 {
					h.Key = fmt.Sprint(random.Intn(1000))
				}
				began := time.Now()
				if err := store.Take(context.Background(), 20*time.Second, []ratelimit.Hit{h}, decisions); err != nil {
					fmt.Fprintln(os.Stderr, err)
					return
				}
				if !decisions[0].Allowed {
					continue
				}
				ended := time.Now()
				key := tally{Prefix: h.Limit.Prefix, Key: h.Key, Slot: began.UnixNano() / int64(slot), Slow: began.UnixNano()/int64(slot) != ended.UnixNano()/int64(slot)}
				switch {
				case h.Key != "hot" || strings.HasSuffix(h.Limit.Prefix, "long"):
					key.Slot, key.Slow = 0, false
				case strings.HasSuffix(h.Limit.Prefix, "short"):
					key.Reset = decisions[0].Reset.UnixMicro()
					if decisions[0].Source == ratelimit.FromLease && !began.Before(decisions[0].Reset) {
						fmt.Fprintln(os.Stderr, "a lease was used after its Reset")
					}
				}
				mu.Lock()
				counts[key]++
				mu.Unlock()
			}
		}()
	}
	for ctx.Err() == nil {
		time.Sleep(20 * time.Millisecond)
		flush()
	}
	group.Wait()
	flush()
	leased := store.Stats().Leased
	store.Close()
	return out.Encode(tally{Prefix: "leased", N: leased})
}

// TestLeasedProcesses lets three processes take leases of the same rows, of all algorithms that
// allow them, on both tables, while limits are made anew, processes are killed and started, and
// another process resets keys.
// Never more passes than the limit allows, in any stretch of time, and never more than was
// charged.
func TestLeasedProcesses(t *testing.T) {
	s := newSite(t)
	s.exec(postgres.TableSQL)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var all []tally
	var group sync.WaitGroup
	start := func() *exec.Cmd {
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), asLeaseWorker+"="+s.dsn)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		group.Add(1)
		go func() {
			defer group.Done()
			lines := bufio.NewScanner(out)
			for lines.Scan() {
				var one tally
				if json.Unmarshal(lines.Bytes(), &one) == nil { // the last line of a killed process may be cut
					mu.Lock()
					all = append(all, one)
					mu.Unlock()
				}
			}
			_ = cmd.Wait() // it may have been killed
			if stderr.Len() > 0 {
				t.Errorf("a process says %.500s", stderr.String())
			}
		}()
		return cmd
	}
	running := []*exec.Cmd{start(), start(), start()}
	resetter, resets := s.store(postgres.Options{CleanupProbability: -1}), []stretch{{to: time.Now()}}
	for round := 0; round < 4*conformance.Long(); round++ {
		for range 3 {
			time.Sleep(time.Second)
			resets = append(resets, resetHot(t, resetter))
		}
		victim := round % len(running)
		if err := running[victim].Process.Kill(); err != nil {
			t.Fatal(err)
		}
		running[victim] = start()
	}
	time.Sleep(2 * time.Second)
	for _, cmd := range running {
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	group.Wait()
	leased, admitted := int64(0), int64(0)
	hot, reset := map[string][]tally{}, map[string][]tally{}
	sums := map[string]int64{}
	for _, one := range all {
		switch {
		case one.Prefix == "leased":
			leased += one.N
		case one.Reset != 0:
			hot[one.Prefix] = append(hot[one.Prefix], one)
			admitted += one.N
		case one.Slot != 0:
			reset[one.Prefix] = append(reset[one.Prefix], one)
			admitted += one.N
		default:
			sums[one.Prefix+"/"+one.Key] += one.N
			admitted += one.N
		}
	}
	t.Logf("%d hits passed, %d were decided by leases of the last processes", admitted, leased)
	if leased == 0 {
		t.Error("no lease was used")
	}
	for _, l := range leasedLimits() {
		if strings.HasSuffix(l.Prefix, "reset") {
			checkResets(t, l, reset[l.Prefix], resets)
			continue
		}
		if strings.HasSuffix(l.Prefix, "long") {
			if n := sums[l.Prefix+"/hot"]; n > 30000 {
				t.Errorf("%s: %d of 30000 passed", l.Prefix, n)
			} else if charged := used(t, s, ratelimit.Hit{Limit: l, Key: "hot"}); charged < n {
				t.Errorf("%s: %d passed, and only %d were charged", l.Prefix, n, charged)
			} else {
				t.Logf("%s: %d of 30000 passed, %d charged", l.Prefix, n, charged)
			}
			continue
		}
		if len(hot[l.Prefix]) == 0 {
			t.Errorf("%s: nothing passed", l.Prefix)
		}
		checkHot(t, l, hot[l.Prefix])
	}
}

// stretch is a stretch of time.
type stretch struct{ from, to time.Time }

// resetHot resets the hot keys of the limits for resets, and returns when.
func resetHot(t *testing.T, store *postgres.Store) stretch {
	t.Helper()
	var hits []ratelimit.Hit
	for _, l := range leasedLimits() {
		if strings.HasSuffix(l.Prefix, "reset") {
			hits = append(hits, ratelimit.Hit{Limit: l, Key: "hot"})
		}
	}
	begun := time.Now()
	if err := store.Reset(context.Background(), 20*time.Second, hits); err != nil {
		t.Fatal(err)
	}
	return stretch{begun, time.Now()}
}

// checkResets checks what passed of one key between each two resets: the quota, and what three other
// processes may have held at the first of the two.
func checkResets(t *testing.T, l *ratelimit.Limit, tallies []tally, resets []stretch) {
	t.Helper()
	most := l.Events + 3*l.Events/20
	renewed := 0
	for i := 1; i < len(resets); i++ {
		from, to := resets[i-1].to.UnixNano()/int64(slot)+1, resets[i].from.UnixNano()/int64(slot)
		passed := int64(0)
		for _, one := range tallies {
			if one.Slot >= from && one.Slot < to && !one.Slow {
				passed += one.N
			}
		}
		if passed > most {
			t.Errorf("%s: %d passed between two resets, at most %d may", l.Prefix, passed, most)
		}
		if i > 1 && passed > 0 {
			renewed++
		}
	}
	t.Logf("%s: hits passed after %d of %d resets", l.Prefix, renewed, len(resets)-1)
	if renewed == 0 {
		t.Errorf("%s: nothing passed after a reset", l.Prefix)
	}
}

// checkHot checks what passed of one key against a limit's definition.
func checkHot(t *testing.T, l *ratelimit.Limit, tallies []tally) {
	t.Helper()
	sort.Slice(tallies, func(i, j int) bool { return tallies[i].Slot < tallies[j].Slot })
	window := l.Window.Microseconds()
	length := int64(slot / time.Microsecond)
	windows := map[int64]int64{} // by the start of the window: what passed
	for _, one := range tallies {
		switch l.Algorithm {
		case ratelimit.FixedWindow:
			windows[one.Reset-window] += one.N
		case ratelimit.SlidingWindow:
			windows[one.Reset-2*window] += one.N
		}
	}
	for start, n := range windows {
		if n > l.Events {
			t.Errorf("%s: %d of %d passed in the window from %d", l.Prefix, n, l.Events, start)
		}
		t.Logf("%s: %d of %d passed in a window", l.Prefix, n, l.Events)
	}
	switch l.Algorithm {
	case ratelimit.SlidingWindow:
		for start, previous := range windows {
			next := start + window
			passed := int64(0)
			for _, one := range tallies {
				if one.Reset-2*window != next || one.Slow {
					continue
				}
				passed += one.N
				elapsed := (one.Slot+1)*length - next // when the slot ends, the previous window counts least
				if weighted := previous * max(0, window-elapsed) / window; weighted+passed > l.Events {
					t.Fatalf("%s: %d passed by %d µs of a window, after %d in the previous one", l.Prefix, passed, elapsed, previous)
				}
			}
		}
	case ratelimit.TokenBucket:
		for i := range tallies {
			passed := int64(0)
			for j := i; j < len(tallies); j++ {
				if !tallies[j].Slow {
					passed += tallies[j].N
				}
				took := (tallies[j].Slot - tallies[i].Slot + 1) * length
				if most := l.Capacity() + l.Events*((took+window-1)/window); passed > most {
					t.Fatalf("%s: %d passed in %d µs, at most %d may", l.Prefix, passed, took, most)
				}
			}
		}
	}
}

// TestSteadyDemandGetsTheQuota: many processes together ask for more than the limit. They get at
// least 98 % of it, although each holds leases. A machine that is too busy to make all of the
// demand gets as much less.
func TestSteadyDemandGetsTheQuota(t *testing.T) {
	if raced {
		t.Skip("with the race detector, a busy machine cannot make the demand; make test runs this without it, too")
	}
	for _, processes := range []int{2, 10, 50} {
		for _, a := range leasable {
			t.Run(fmt.Sprint(a, processes), func(t *testing.T) {
				s := newSite(t)
				s.exec(postgres.TableSQL)
				l := &ratelimit.Limit{Prefix: "p", Algorithm: a, Events: 3000, Window: 2 * time.Second, Lease: 0.05}
				const windows = 3
				var mu sync.Mutex
				admitted, leased, asked := int64(0), int64(0), int64(0)
				var group sync.WaitGroup
				begin := time.Now()
				end := begin.Add(windows * l.Window)
				every := time.Duration(processes) * l.Window / time.Duration(l.Events) * 3 / 4
				for range processes {
					db, err := pgxdb.Open(s.dsn, pgxdb.Options{MaxConns: 1})
					if err != nil {
						t.Fatal(err)
					}
					store := s.storeOn(db, postgres.Options{CleanupProbability: -1, DisableMigration: true, Workers: 1})
					group.Add(1)
					go func() {
						defer group.Done()
						n, hits := int64(0), int64(0)
						for at := time.Now(); at.Before(end); at = at.Add(every) {
							if late := time.Since(at); late > 0 {
								at = at.Add(late) // what was missed is not made up for
							}
							time.Sleep(time.Until(at))
							hits++
							if takeOne(t, store, ratelimit.Hit{Limit: l, Key: "k", Cost: 1}).Allowed && time.Now().Before(end) {
								n++
							}
						}
						mu.Lock()
						admitted += n
						asked += hits
						leased += store.Stats().Leased
						mu.Unlock()
					}()
				}
				group.Wait()
				got := float64(admitted) / float64(windows*l.Events)
				made := min(1, float64(asked)*float64(every)/float64(processes)/float64(windows*l.Window))
				t.Logf("%.2f%% of the limit for %.2f%% of the demand, %d of %d hits decided by leases", 100*got, 100*made, leased, admitted)
				if got < 0.98*made {
					t.Errorf("%.2f%% of a steady demand above the limit got %.2f%% of the limit", 100*made, 100*got)
				}
			})
		}
	}
}
