// Command hammer sends hits to a Postgres store without a proxy, and prints the outcome as
// JSON. Tests run it if the hits must come from several processes, or if there are too many
// for a program with the race detector.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"reflect"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// Outcome is what hammer prints.
type Outcome struct {
	Admitted []int64 // the sum of the costs that passed, by key
	Refused  int64   // hits
	Seconds  float64
	Errors   []string // what the store passed to OnError
}

type options struct {
	dsn, algorithm, limit, burst, prefix string
	durable, sync                        bool
	keys, hits, callers, costs, first    int
	workers                              int
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
	flag.IntVar(&o.callers, "callers", 64, "how many hits wait for a decision at once")
	flag.IntVar(&o.costs, "costs", 1, "hits cost 1, 2 … up to this, in turn")
	flag.IntVar(&o.first, "first", 0, "the first hit's number, which chooses its key and its cost")
	flag.IntVar(&o.workers, "workers", 0, "how many batches may be in flight at once; 0 is the default")
	flag.Float64Var(&o.cleanup, "cleanup", 0, "the probability of a cleanup; 0 is the default, below 0 is never")
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

// timeout is for one decision. Every hit must get one.
const timeout = time.Minute

func run(o options) (*Outcome, error) {
	read, err := edge.ReadLimit(reflect.ValueOf(edge.LimitSettings{Prefix: o.prefix, Algorithm: o.algorithm, Limit: o.limit, Burst: o.burst,
		Durable: strconv.FormatBool(o.durable), SynchronousCommit: strconv.FormatBool(o.sync)}))
	if err != nil {
		return nil, err
	}
	limit := &read.Limit
	db, err := pgxdb.Open(o.dsn, pgxdb.Options{})
	if err != nil {
		return nil, err
	}
	outcome := &Outcome{Admitted: make([]int64, o.keys)}
	var mu sync.Mutex
	store, err := postgres.New(db, postgres.Options{Workers: o.workers, CleanupProbability: o.cleanup, OnError: func(err error) {
		mu.Lock()
		defer mu.Unlock()
		outcome.Errors = append(outcome.Errors, err.Error())
	}})
	if err != nil {
		return nil, err
	}
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
				// Each key gets each cost, whatever the numbers of keys and costs are.
				cost := int64(i/o.keys%o.costs) + 1
				hit := ratelimit.Hit{Limit: limit, Key: "key-" + strconv.Itoa(i%o.keys), Cost: cost}
				err := store.Take(context.Background(), timeout, []ratelimit.Hit{hit}, decisions)
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
