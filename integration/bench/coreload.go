package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
)

// coreChild is the argument that asks for coreMain.
const coreChild = "child-core"

// coreLoad is the load of one process on the core.
type coreLoad struct {
	DSN     string
	Bare    bool // no decisions: upserts of the same rows
	Stores  int  // each with its own connections
	Callers int  // of each store
	Batch   int  // rows that a caller asks about at once
	Keys    int
	Seconds float64
	Seed    uint64
}

// coreOutcome is what came of it.
type coreOutcome struct {
	Decisions  int64
	Statements int64
	Seconds    float64
	CPU        float64 // of the process, in microseconds
}

// coreMain warms up, says that it is ready, waits for a line, measures, writes
// the outcome, and only then stops: a failure shows in how it ends.
func coreMain(args []string) error {
	if len(args) != 1 {
		return errors.New("takes one argument")
	}
	var load coreLoad
	if err := json.Unmarshal([]byte(args[0]), &load); err != nil {
		return err
	}
	// When the program that started this one is gone, its input ends.
	input := bufio.NewReader(os.Stdin)
	run, err := startCoreRun(load)
	if err != nil {
		return err
	}
	time.Sleep(warmUp * time.Second / 2)
	fmt.Println("ready")
	if _, err := input.ReadString('\n'); err != nil {
		return err
	}
	before, cpu, began := run.count(), ownCPU(), time.Now()
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, input)
		close(ended)
	}()
	select {
	case <-time.After(time.Duration(load.Seconds * float64(time.Second))):
	case <-ended:
		return errors.New("told to end")
	}
	o := run.count()
	o.Decisions -= before.Decisions
	o.Statements -= before.Statements
	o.Seconds = time.Since(began).Seconds()
	o.CPU = microseconds(ownCPU() - cpu)
	if err := json.NewEncoder(os.Stdout).Encode(o); err != nil {
		return err
	}
	return run.end()
}

// ownCPU is the CPU time of this process so far.
func ownCPU() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// coreRun is a load under way.
type coreRun struct {
	load      coreLoad
	decisions atomic.Int64
	bare      atomic.Int64 // statements, of a bare load
	stores    []*ratelimit.Postgres
	stopping  atomic.Bool
	wait      sync.WaitGroup
	failure   atomic.Pointer[error]
}

func startCoreRun(load coreLoad) (*coreRun, error) {
	r := &coreRun{load: load}
	for s := range load.Stores {
		db, err := pgxdb.Open(load.DSN, pgxdb.Options{})
		if err != nil {
			return nil, err
		}
		var work func(keys [][]string) error
		if load.Bare {
			work = func(batches [][]string) error { return r.upsert(db, batches) }
		} else {
			store := ratelimit.NewPostgres(db, ratelimit.PostgresOptions{})
			r.stores = append(r.stores, store)
			work = func(batches [][]string) error { return r.decide(store, batches) }
		}
		for c := range load.Callers {
			batches := load.batches(rand.New(rand.NewPCG(load.Seed, uint64(s*load.Callers+c))))
			r.wait.Go(func() {
				if err := work(batches); err != nil {
					r.failure.CompareAndSwap(nil, &err)
				}
			})
		}
	}
	return r, nil
}

// batchesMade is how many batches a caller has beforehand; it asks about them
// over and over.
const batchesMade = 1000

// batches are made of keys that differ within a batch, at random.
func (l *coreLoad) batches(random *rand.Rand) [][]string {
	batches := make([][]string, batchesMade)
	for i := range batches {
		taken := map[int]bool{}
		for len(batches[i]) < min(l.Batch, l.Keys) {
			n := random.IntN(l.Keys)
			if !taken[n] {
				taken[n] = true
				batches[i] = append(batches[i], string(appendKey(nil, n)))
			}
		}
		if l.Bare {
			// In one order, or two upserts could wait for each other.
			slices.Sort(batches[i])
		}
	}
	return batches
}

// patience is for one batch.
const patience = 30 * time.Second

// decide asks the store, each batch as the hits of one request.
func (r *coreRun) decide(store *ratelimit.Postgres, batches [][]string) error {
	limit := &ratelimit.Limit{Prefix: zoneNames[0], Algorithm: ratelimit.SlidingWindow, Events: 1000000000, Window: time.Hour}
	hits, decisions := make([]ratelimit.Hit, r.load.Batch), make([]ratelimit.Decision, r.load.Batch)
	for i := 0; !r.stopping.Load(); i++ {
		for j, key := range batches[i%len(batches)] {
			hits[j] = ratelimit.Hit{Limit: limit, Key: key, Cost: 1}
		}
		if err := store.Take(context.Background(), patience, hits, decisions); err != nil {
			return err
		}
		for _, d := range decisions {
			if !d.Allowed {
				return errors.New("refused, with room left")
			}
		}
		r.decisions.Add(int64(len(hits)))
	}
	return nil
}

// bareSQL counts hits without deciding anything.
const bareSQL = `INSERT INTO bare AS r (prefix, key, count, window_start, expires_at)
SELECT prefix, key, count, now(), now() + interval '2 hours' FROM unnest($1::text[], $2::text[], $3::bigint[]) AS u(prefix, key, count)
ON CONFLICT (prefix, key) DO UPDATE SET count = r.count + excluded.count RETURNING count`

// upsert runs bareSQL for each batch.
func (r *coreRun) upsert(db ratelimit.DB, batches [][]string) error {
	defer db.Close()
	prefixes, counts := make([]string, r.load.Batch), make([]int64, r.load.Batch)
	for i := range prefixes {
		prefixes[i], counts[i] = zoneNames[0], 1
	}
	for i := 0; !r.stopping.Load(); i++ {
		rows := 0
		s := &ratelimit.Statement{SQL: bareSQL, Args: []any{prefixes, batches[i%len(batches)], counts}, Row: func(columns [][]byte) error {
			if len(columns) != 1 || len(columns[0]) != 8 {
				return errors.New("the row is not one bigint")
			}
			rows++
			return nil
		}}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		err := db.Run(ctx, []*ratelimit.Statement{s})
		cancel()
		if err = errors.Join(err, s.Err); err != nil {
			return err
		}
		if rows != r.load.Batch {
			return fmt.Errorf("%d rows for a batch of %d", rows, r.load.Batch)
		}
		r.decisions.Add(int64(rows))
		r.bare.Add(1)
	}
	return nil
}

// count is what has been done so far.
func (r *coreRun) count() coreOutcome {
	o := coreOutcome{Decisions: r.decisions.Load(), Statements: r.bare.Load()}
	for _, s := range r.stores {
		o.Statements += s.Stats().Statements
	}
	return o
}

// end stops the callers, and returns what went wrong.
func (r *coreRun) end() error {
	r.stopping.Store(true)
	r.wait.Wait()
	for _, s := range r.stores {
		s.Close()
	}
	if failure := r.failure.Load(); failure != nil {
		return *failure
	}
	return nil
}
