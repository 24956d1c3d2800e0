package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

// coreLoad is a load on the core, without a proxy.
type coreLoad struct {
	Processes int
	Stores    int // of a process, each with its own connections
	Callers   int // of a store, each of which waits for one request at a time
	Keys      int
	Batch     int // the decisions of a request, each on another key

	Bare      bool    // upserts of the same rows, without decisions
	TwoLimits bool    // a second limit on each request; every refusal asks the database
	Refused   float64 // the share of requests that the second limit refuses

	DSN     string
	Begin   time.Time // when to start counting
	Seconds int       // for how long
	Seed    uint64
}

// coreCounts are counts of a process since its start. A refused request counts once.
type coreCounts struct{ Decisions, Refused, Statements, CPU float64 } // CPU in microseconds

// coreLeadTime is for the processes of a load to start and to warm up.
const coreLeadTime = 1500 * time.Millisecond

// bareTable is a table of the same shape as the core's, for the bare upsert.
const bareTable = "CREATE UNLOGGED TABLE bare (LIKE rate_limit_ephemeral INCLUDING ALL) WITH (fillfactor = 70)"

// measureCore measures the rows of the core.
func (b *bench) measureCore() {
	for _, r := range b.coreRows {
		r.core.DSN = b.postgres.create(b.ctx)
		query(b.ctx, r.core.DSN, tableSQL, bareTable)
		useUp(b.ctx, r.core)
	}
	b.measureRounds(b.coreRows, b.measureCoreRow)
}

// measureCoreRow measures a row of the core once. All processes of its load count
// during the same seconds.
func (b *bench) measureCoreRow(row *row, round int) sample {
	load := row.core
	load.Begin, load.Seconds = time.Now().Add(coreLeadTime), b.seconds
	counts := make([][2]coreCounts, load.Processes) // at the begin and at the end
	group, ctx := errgroup.WithContext(b.ctx)
	for i := range counts {
		load.Seed = uint64(100*round + i)
		cmd := exec.CommandContext(ctx, must(os.Executable()), coreProcess, string(must(json.Marshal(load))))
		group.Go(func() error {
			out, err := output(cmd)
			if err != nil {
				return err
			}
			return json.Unmarshal(out, &counts[i])
		})
	}
	time.Sleep(time.Until(load.Begin))
	cpu := cpuTime(b.postgres.postmaster)
	time.Sleep(time.Until(load.end()))
	cpu = cpuTime(b.postgres.postmaster) - cpu
	check(group.Wait())
	var sum coreCounts
	for _, c := range counts {
		sum.Decisions += c[1].Decisions - c[0].Decisions
		sum.Refused += c[1].Refused - c[0].Refused
		sum.Statements += c[1].Statements - c[0].Statements
		sum.CPU += c[1].CPU - c[0].CPU
	}
	n := sum.Decisions
	return sample{rate: n / float64(b.seconds), clientCPU: sum.CPU / n, storeCPU: microseconds(cpu) / n, statements: sum.Statements / n, refused: sum.Refused / n}
}

func (l *coreLoad) end() time.Time { return l.Begin.Add(time.Duration(l.Seconds) * time.Second) }

// coreProcess is the argument that makes this program run a coreLoad: in a process
// of its own, so that its CPU time can be told from the rest.
const coreProcess = "core-process"

// runCoreProcess runs the load that the argument describes, and prints its counts at
// the begin and at the end.
func runCoreProcess(argument string) (err error) {
	defer catch(&err)
	var load coreLoad
	check(json.Unmarshal([]byte(argument), &load))
	run := startCore(load)
	if time.Now().After(load.Begin) {
		return fmt.Errorf("the load was not ready within %v", coreLeadTime)
	}
	time.Sleep(time.Until(load.Begin))
	before := run.counts()
	time.Sleep(time.Until(load.end()))
	after := run.counts()
	return errors.Join(run.stop(), json.NewEncoder(os.Stdout).Encode([]coreCounts{before, after}))
}

// coreRun is a load under way.
type coreRun struct {
	requests, refused, upserts atomic.Int64
	batch                      int
	stores                     []*coreStore
	stopping                   atomic.Bool
	callers                    errgroup.Group
}

// request asks for the decisions of the ith request of a caller.
type request func(i int) (refused bool, err error)

// startCore starts the callers of one process.
func startCore(load coreLoad) *coreRun {
	r := &coreRun{batch: load.Batch}
	for s := range load.Stores {
		if !load.Bare {
			r.stores = append(r.stores, openStore(load))
		}
		for c := range load.Callers {
			random := rand.New(rand.NewPCG(load.Seed, uint64(s*load.Callers+c)))
			var ask request
			if load.Bare {
				ask = bareRequest(load, random, &r.upserts)
			} else {
				ask = r.stores[s].request(load, random)
			}
			r.callers.Go(func() error { return r.repeat(ask) })
		}
	}
	return r
}

// repeat asks until the run stops or a request fails.
func (r *coreRun) repeat(ask request) error {
	for i := 0; !r.stopping.Load(); i++ {
		refused, err := ask(i)
		if err != nil {
			return err
		}
		r.requests.Add(1)
		if refused {
			r.refused.Add(1)
		}
	}
	return nil
}

// counts are what the process has done so far.
func (r *coreRun) counts() coreCounts {
	statements := r.upserts.Load()
	for _, s := range r.stores {
		statements += s.statements()
	}
	var u syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return coreCounts{float64(r.requests.Load()) * float64(r.batch), float64(r.refused.Load()), float64(statements), float64(u.Utime.Nano()+u.Stime.Nano()) / 1000}
}

// stop waits for the requests in flight and returns the first failure.
func (r *coreRun) stop() error {
	r.stopping.Store(true)
	err := r.callers.Wait()
	for _, s := range r.stores {
		s.close()
	}
	return err
}

// requestsMade is how many requests a caller makes before it starts. It sends them
// over and over.
const requestsMade = 1000

// batch draws different keys for the decisions of one request.
func (l *coreLoad) batch(random *rand.Rand) (names []string) {
	for len(names) < l.Batch {
		if name := keyName(random.IntN(l.Keys)); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// bareSQL counts hits without deciding anything.
const bareSQL = `INSERT INTO bare AS r (prefix, key, count, window_start, expires_at)
SELECT prefix, key, count, now(), now() + interval '2 hours' FROM unnest($1::text[], $2::text[], $3::bigint[]) AS u(prefix, key, count)
ON CONFLICT (prefix, key) DO UPDATE SET count = r.count + excluded.count RETURNING count`
