// Command hammer sends hits straight to the core, without a proxy, and tells
// what became of them as JSON. The tests run it where hits are to come from
// several processes, or are too many for a program under the race detector.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
)

// Outcome is what hammer prints.
type Outcome struct {
	Admitted []int64 // the sum of the costs that passed, by key
	Refused  int64   // how many hits did not
	Seconds  float64
	Reported []string // what the store reported
}

type options struct {
	dsn, algorithm, limit, burst, prefix string
	durable, sync                        bool
	keys, hits, callers, costs, first    int
	flights                              int
	cleanup                              float64
}

func main() {
	var o options
	flag.StringVar(&o.dsn, "dsn", "", "the database")
	flag.StringVar(&o.algorithm, "algorithm", "", "the limit's algorithm")
	flag.StringVar(&o.limit, "limit", "100 1m", "the limit's events and window")
	flag.StringVar(&o.burst, "burst", "", "the limit's burst")
	flag.StringVar(&o.prefix, "prefix", "hammer", "the limit's prefix")
	flag.BoolVar(&o.durable, "durable", false, "count in the durable table")
	flag.BoolVar(&o.sync, "synchronous-commit", false, "wait for the disk")
	flag.IntVar(&o.keys, "keys", 1, "how many keys take turns")
	flag.IntVar(&o.hits, "hits", 1000, "how many hits to send")
	flag.IntVar(&o.callers, "callers", 64, "how many hits are under way at once")
	flag.IntVar(&o.costs, "costs", 1, "hits cost 1, 2 … up to this, in turn")
	flag.IntVar(&o.first, "first", 0, "the first hit's number, which chooses its key and its cost")
	flag.IntVar(&o.flights, "flights", 0, "the most statements under way at once; 0 is the default")
	flag.Float64Var(&o.cleanup, "cleanup", 0, "the probability of a cleanup; 0 is the default, below 0 none")
	flag.Parse()
	outcome, err := run(o)
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(outcome)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "hammer:", err)
		os.Exit(1)
	}
}

// patience is for one decision: no hit may go undecided.
const patience = time.Minute

func run(o options) (*Outcome, error) {
	limit, err := edge.ParseLimit(edge.Config{Prefix: o.prefix, Algorithm: o.algorithm, Limit: o.limit, Burst: o.burst,
		Durable: o.durable, SynchronousCommit: o.sync})
	if err != nil {
		return nil, err
	}
	db, err := pgxdb.Open(o.dsn, pgxdb.Options{})
	if err != nil {
		return nil, err
	}
	outcome := &Outcome{Admitted: make([]int64, o.keys)}
	var mu sync.Mutex
	store := ratelimit.NewPostgres(db, ratelimit.PostgresOptions{Flights: o.flights, CleanupProbability: o.cleanup,
		Report: func(err error) {
			mu.Lock()
			defer mu.Unlock()
			outcome.Reported = append(outcome.Reported, err.Error())
		}})
	defer store.Close()

	began := time.Now()
	var issued atomic.Int64
	var failure error
	var wait sync.WaitGroup
	for range o.callers {
		wait.Add(1)
		go func() {
			defer wait.Done()
			decisions := make([]ratelimit.Decision, 1)
			for {
				i := int(issued.Add(1)) - 1
				if i >= o.hits {
					return
				}
				i += o.first
				// Each key meets each cost, whatever the two numbers are.
				cost := int64(i/o.keys%o.costs) + 1
				hit := ratelimit.Hit{Limit: limit, Key: "key-" + strconv.Itoa(i%o.keys), Cost: cost}
				err := store.Take(context.Background(), patience, []ratelimit.Hit{hit}, decisions)
				switch {
				case err != nil:
					mu.Lock()
					failure = fmt.Errorf("hit %d: %w", i, err)
					mu.Unlock()
					return
				case decisions[0].Allowed:
					atomic.AddInt64(&outcome.Admitted[i%o.keys], cost)
				default:
					atomic.AddInt64(&outcome.Refused, 1)
				}
			}
		}()
	}
	wait.Wait()
	outcome.Seconds = time.Since(began).Seconds()
	if failure != nil {
		return nil, failure
	}
	mu.Lock()
	defer mu.Unlock()
	copied := *outcome
	return &copied, nil
}
