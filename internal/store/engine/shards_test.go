package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// fakeCitus is a database with counts in shards, each on its own server.
type fakeCitus struct {
	fakeDB
	shards [testShards]fakeDB
}

// At returns the server of a shard. The port is the shard's number.
func (c *fakeCitus) At(_ string, port int) (pgdb.DB, error) { return &c.shards[port], nil }

// newFakeCitus returns a database and a store on it. The store has found the shards.
func newFakeCitus(t *testing.T) (*fakeCitus, *store.Store) {
	t.Helper()
	c := &fakeCitus{}
	c.set(answerShards, nil)
	for shard := range c.shards {
		c.shards[shard].set(answerShards, nil)
	}
	store := openStore(t, c, bareOptions, nil)
	takeOne(t, store, ratelimit.Hit{Limit: fakeLimit, Key: "first", Cost: 1})
	return c, store
}

// A cluster with one shard counts and bills there, not in the tables of the database.
func TestTheOnlyShardIsBilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &fakeCitus{}
		var billed [2]atomic.Int64 // by the database and by the shard
		for i, db := range []*fakeDB{&c.fakeDB, &c.shards[0]} {
			db.set(func(ctx context.Context, statements []*pgdb.Statement) error {
				for _, s := range statements {
					billed[i].Add(int64(strings.Count(s.SQL, "INSERT INTO rl_s0.rate_limit_ledger") +
						strings.Count(s.SQL, "INSERT INTO rate_limit_ledger")))
				}
				return answerShardsOf(1)(ctx, statements)
			}, nil)
		}
		store := openStore(t, c, bareOptions, nil)
		takeOne(t, store, ratelimit.Hit{Limit: fakeLimit, Key: "first", Cost: 1})
		limit := *fakeLimit
		limit.Reserves = true
		store.Settle(&batch.Bill{Day: 20000, ID: "1", Charges: []batch.Charge{
			{Limit: &limit, Key: "first", RealUnits: 1}}})
		time.Sleep(time.Minute)
		check.Equal(t, "bills", fmt.Sprint(billed[0].Load(), billed[1].Load()), "0 1")
	})
}

// answerShards responds like a Citus server that admits every hit.
func answerShards(ctx context.Context, statements []*pgdb.Statement) error {
	return answerShardsOf(testShards)(ctx, statements)
}

// answerShardsOf responds like answerShards for a number of shards.
func answerShardsOf(shards int) func(context.Context, []*pgdb.Statement) error {
	return func(ctx context.Context, statements []*pgdb.Statement) error {
		switch s := statements[0]; s.SQL {
		case schema.ShardsReady:
			addRow(s, int4(1))
		case schema.ShardNames:
			for shard := range shards {
				addRow(s, fmt.Append(nil, "rl_s", shard))
			}
		case schema.ShardRoutes:
			for shard := range int64(shards) {
				for _, table := range []string{"rate_limit_ephemeral", "rate_limit_durable",
					"rate_limit_processes", "rate_limit_ledger"} {
					name := fmt.Appendf(nil, "rl_s%d.%s_1", shard, table)
					addRow(s, int4(shard+1), []byte(table), name, []byte("rate_limit_guard(1)"),
						[]byte("host"), int4(shard))
				}
			}
		default:
			return admit(ctx, statements)
		}
		return nil
	}
}

func hitInShard(shard int) ratelimit.Hit {
	return ratelimit.Hit{Limit: fakeLimit, Key: keyInShard(shard), Cost: 1}
}

func independentHitInShard(shard int) ratelimit.Hit {
	h := hitInShard(shard)
	h.Independent = true
	return h
}

var errWorkerDown = errors.New("the worker is down")

// stopShard stops a shard's server, and takes a hit there, so that the store detects the outage.
func (c *fakeCitus) stopShard(t *testing.T, store *store.Store, shard int) {
	t.Helper()
	c.shards[shard].set(failWith(errWorkerDown), failWith(errWorkerDown))
	_, _, err := tryOne(store, testTimeout, hitInShard(shard))
	if !errors.Is(err, ratelimit.ErrUnavailable) || !errors.Is(err, errWorkerDown) {
		t.Errorf("a shard that is down: error %v, want ErrUnavailable and its cause", err)
	}
}

// If the shard of an Independent hit is down, the hit is undecided, and the other hits are decided.
func TestIndependentHitOnStoppedShardFailsNothing(t *testing.T) {
	c, store := newFakeCitus(t)
	c.stopShard(t, store, 1)
	for name, hits := range map[string][]ratelimit.Hit{
		"before an enforced limit": {independentHitInShard(1), hitInShard(2)},
		"before independent others": {
			independentHitInShard(1), independentHitInShard(2), independentHitInShard(1)},
	} {
		decisions := make([]ratelimit.Decision, len(hits))
		err := store.Take(t.Context(), testTimeout, hits, decisions)
		got := outcomes(decisions...)
		if !strings.HasPrefix(got, "undecided, allowed") || decisions[1].Source != ratelimit.FromPostgres {
			t.Errorf("%s: %s, %v; want the first undecided and the second allowed", name, got, err)
		}
	}
}

// A refusal by a shard refuses the request even if another shard, with only a refund, is down.
func TestRefusalHoldsWithHomeShardDown(t *testing.T) {
	c, store := newFakeCitus(t)
	c.stopShard(t, store, 1)
	c.shards[2].set(refuse, nil)
	refund := hitInShard(1)
	refund.Subject = refund.Key
	refund.Cost = -1
	decisions := make([]ratelimit.Decision, 2)
	err := store.Take(t.Context(), testTimeout, []ratelimit.Hit{hitInShard(2), refund}, decisions)
	if err != nil || decisions[0].Allowed {
		t.Errorf("got %+v, %v; want a refusal by shard 2", decisions, err)
	}
}

// If one shard refuses a request that another shard has charged, the other shard refunds the charge in the
// window in which it was made.
func TestRefusalRefundsWindowOfCharge(t *testing.T) {
	c, store := newFakeCitus(t)
	c.shards[2].set(refuse, nil)
	var refundedAt []int64
	c.shards[1].set(func(ctx context.Context, statements []*pgdb.Statement) error {
		for _, s := range statements {
			if strings.Contains(s.SQL, "$8") { // a refund or a settlement
				refundedAt = append(refundedAt, s.Args[len(s.Args)-1].([]int64)...)
			}
		}
		return admit(ctx, statements)
	}, nil)
	home := hitInShard(2)
	home.Subject = home.Key
	decisions := make([]ratelimit.Decision, 2)
	err := store.Take(t.Context(), testTimeout, []ratelimit.Hit{hitInShard(1), home}, decisions)
	if got := outcomes(decisions...); got != "allowed 5 of 5, refused 0 of 5" {
		t.Errorf("got %s, %v, want allowed 5 of 5, refused 0 of 5", got, err)
	}
	if want := []int64{decisions[0].DecidedAt}; !slices.Equal(refundedAt, want) {
		t.Errorf("refunds at %v, want %v, the time of the charge", refundedAt, want)
	}
}

// A settlement ends the Hold of a request with units on several shards, even if it is lost.
func TestUnitsHeldOnSeveralShardsEnd(t *testing.T) {
	_, store := newFakeCitus(t)
	hold, ended := &ratelimit.Hold{}, 0
	hold.Acquire(func() { ended++ })
	limit := *fakeLimit
	limit.Reserves = true
	charge := batch.Charge{Limit: &limit, Key: keyInShard(1), Charged: 1, RealUnits: 1, Hold: hold}
	store.Close()
	store.Settle(&batch.Bill{Charges: []batch.Charge{charge}})
	check.Equal(t, "ended", ended, 1)
}

// The database opens the day of a late settlement that a shard refuses, and the settlement arrives.
func TestLateSettlementOnAShardArrives(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, store := newFakeCitus(t)
		var opened atomic.Int64
		c.set(func(ctx context.Context, statements []*pgdb.Statement) error {
			if s := statements[0]; s.SQL == schema.LedgerUpkeepOf {
				opened.Store(s.Args[0].(int64))
			}
			return answerShards(ctx, statements)
		}, nil)
		c.shards[1].set(func(_ context.Context, statements []*pgdb.Statement) error {
			for _, s := range statements {
				if opened.Load() == 0 {
					failStatement(s, "23514", "no partition of relation found for row")
				}
			}
			return nil
		}, nil)
		limit := *fakeLimit
		limit.Reserves = true
		store.Settle(&batch.Bill{Day: 20000, ID: "1", Charges: []batch.Charge{
			{Limit: &limit, Key: keyInShard(1), RealUnits: 1}}})
		time.Sleep(time.Minute)
		check.Equal(t, "the day", opened.Load(), 20000)
		check.Equal(t, "settled", store.Stats()[engine.Settled], 1)
	})
}

// failOnce fails the next hit on a shard. routesRead counts the reads of routes on the shard's server.
func (c *fakeCitus) failOnce(shard int, code, text string) (routesRead *int) {
	failed, read := false, 0
	c.shards[shard].set(func(ctx context.Context, statements []*pgdb.Statement) error {
		switch {
		case statements[0].SQL == schema.ShardRoutes:
			read++
		case len(statementKeys(statements[0])) > 0 && !failed:
			failed = true
			for _, s := range statements {
				failStatement(s, code, text)
			}
			return nil
		}
		return answerShards(ctx, statements)
	}, nil)
	return &read
}

// After an error that means that a shard moves, the store reads the routes of the shards again. After a lost
// conflict it does not.
func TestOnlyMovedShardsRereadRoutes(t *testing.T) {
	c, store := newFakeCitus(t)
	for code, want := range map[string]int{"40001": 0, "RL001": 1, "RL002": 1} {
		read := c.failOnce(1, code, "placement 7 is not here")
		takeOne(t, store, hitInShard(1))
		if *read != want {
			t.Errorf("%s: the routes were read %d times, want %d", code, *read, want)
		}
	}
}

// A proxy decides locally for shards that are down, and charges the admitted hits to each shard when it is
// back.
func TestLocalChargesReachTheirShards(t *testing.T) {
	c := &fakeCitus{}
	c.set(failWith(errWorkerDown), failWith(errWorkerDown))
	charged := make(chan string, testShards)
	recording := func(shard int) answerFunc {
		return func(ctx context.Context, statements []*pgdb.Statement) error {
			for _, s := range statements {
				for _, key := range statementKeys(s) {
					if s.Args[1] == any("local") {
						charged <- fmt.Sprint(key, " on ", shard)
					}
				}
			}
			return answerShards(ctx, statements)
		}
	}
	for shard := range c.shards {
		c.shards[shard].set(recording(shard), nil)
	}
	store := openStore(t, c, bareOptions, nil)
	store.UseLocal()
	takeLocal := func(shard int) {
		t.Helper()
		h := hitOn("local", 10, true)
		h.Key = keyInShard(shard)
		d := make([]ratelimit.Decision, 1)
		if !store.TakeLocal(ratelimit.ErrUnavailable, []ratelimit.Hit{h}, d) || !d[0].Allowed {
			t.Fatalf("shard %d: got %+v, want a local decision that allows", shard, d)
		}
	}
	takeLocal(3) // before the store has found the shards

	// Then shard 1 stops.
	c.set(answerShards, nil)
	takeOne(t, store, hitInShard(1))
	c.stopShard(t, store, 1)
	takeLocal(1)
	if !store.Local().On {
		t.Error("Local().On is false while a shard is down, want true")
	}
	takeOne(t, store, hitInShard(2))

	// When shard 1 is back, each shard has got its own charge.
	c.shards[1].set(recording(1), nil)
	got := []string{<-charged, <-charged}
	slices.Sort(got)
	if want := []string{keyInShard(3) + " on 3", keyInShard(1) + " on 1"}; !slices.Equal(got, want) {
		t.Errorf("charged %q, want %q", got, want)
	}
}
