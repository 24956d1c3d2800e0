package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// This file holds all calls to the packages of pg-ratelimit.

const tableSQL = postgres.TableSQL

// otherAlgorithms are limits of all algorithms but sliding_window, each with a quota
// that no load uses up.
func otherAlgorithms() (limits []limitSpec) {
	for _, a := range ratelimit.Algorithms() {
		if a == ratelimit.SlidingWindow {
			continue
		}
		spec := limitSpec{Algorithm: a.String(), Limit: ample}
		l := ratelimit.Limit{Prefix: "api", Algorithm: a, Events: ampleEvents, Window: time.Hour}
		if l.Validate() != nil {
			spec.Limit = "1000 1s" // the algorithm does not take so many events
		}
		limits = append(limits, spec)
	}
	return limits
}

// coreStore is a store of a coreLoad.
type coreStore struct{ *postgres.Store }

func openStore(load coreLoad) *coreStore {
	var o postgres.Options
	if load.TwoLimits {
		o.MaxBlockedKeys = -1
	}
	return &coreStore{must(postgres.New(must(pgxdb.Open(load.DSN, pgxdb.Options{})), o))}
}

func (s *coreStore) close() { s.Close() }

func (s *coreStore) statements() int64 { return s.Stats().Statements }

func slidingLimit(prefix string, events int64) *ratelimit.Limit {
	return &ratelimit.Limit{Prefix: prefix, Algorithm: ratelimit.SlidingWindow, Events: events, Window: time.Hour}
}

// The limits of the loads. useUp uses up the last one on every key.
var (
	firstLimit  = slidingLimit("api", 1000000000)
	secondLimit = slidingLimit("team", 1000000000)
	usedUpLimit = slidingLimit("used up", 1)
)

// patience is for one request.
const patience = 30 * time.Second

// useUp prepares the database for the load.
func useUp(ctx context.Context, load coreLoad) {
	if load.Refused > 0 {
		store := openStore(load)
		defer store.close()
		for n := range load.Keys {
			check(store.Take(ctx, patience, []ratelimit.Hit{{Limit: usedUpLimit, Key: keyName(n), Cost: 1}}, make([]ratelimit.Decision, 1)))
		}
	}
}

// bareRequest returns what a caller of bare upserts asks, on a connection of its own
// but over the driver of the stores.
func bareRequest(load coreLoad, random *rand.Rand, upserts *atomic.Int64) request {
	db := must(pgxdb.Open(load.DSN, pgxdb.Options{}))
	prefixes, counts := slices.Repeat([]string{"api"}, load.Batch), slices.Repeat([]int64{1}, load.Batch)
	batches := make([][]string, requestsMade)
	for i := range batches {
		batches[i] = load.batch(random)
		slices.Sort(batches[i]) // or else two upserts could deadlock
	}
	return func(i int) (refused bool, err error) {
		s := &postgres.Statement{SQL: bareSQL, Args: []any{prefixes, batches[i%len(batches)], counts}}
		if err := errors.Join(db.Run(context.Background(), []*postgres.Statement{s}), s.Err); err != nil || s.Rows != load.Batch {
			return false, fmt.Errorf("%d rows for a batch of %d: %w", s.Rows, load.Batch, err)
		}
		upserts.Add(1)
		return false, nil
	}
}

// request returns what a caller of the store asks. It fails if a decision is wrong.
func (s *coreStore) request(load coreLoad, random *rand.Rand) request {
	requests := make([][]ratelimit.Hit, requestsMade)
	for i := range requests {
		for _, key := range load.batch(random) {
			requests[i] = append(requests[i], ratelimit.Hit{Limit: firstLimit, Key: key, Cost: 1})
		}
		if load.TwoLimits {
			second := ratelimit.Hit{Limit: secondLimit, Key: keyName(random.IntN(load.Keys)), Cost: 1}
			if random.Float64() < load.Refused {
				second.Limit = usedUpLimit
			}
			requests[i] = append(requests[i], second)
		}
	}
	decisions := make([]ratelimit.Decision, len(requests[0]))
	return func(i int) (refused bool, err error) {
		hits := requests[i%len(requests)]
		if err := s.Take(context.Background(), patience, hits, decisions); err != nil {
			return false, err
		}
		refused = slices.ContainsFunc(decisions, func(d ratelimit.Decision) bool { return !d.Allowed })
		if refused != (hits[len(hits)-1].Limit == usedUpLimit) {
			return false, fmt.Errorf("a wrong decision: %+v", decisions)
		}
		return refused, nil
	}
}
