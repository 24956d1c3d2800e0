package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// fakeCitus is a database with counts in shards, each on a server of its own.
type fakeCitus struct {
	fakeDB
	shards [testShards]fakeDB
}

// openShards opens a store that counts in shards if the database does.
func openShards(t testing.TB, db pgdb.DB, o engine.Options) *store.Store {
	t.Helper()
	s, err := store.Open(db, o, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// At is the server of the shard that is the port.
func (c *fakeCitus) At(_ string, port int) (pgdb.DB, error) { return &c.shards[port], nil }

// newFakeCitus returns a database, and a store on it that has found the shards.
func newFakeCitus(t *testing.T) (*fakeCitus, *store.Store) {
	t.Helper()
	c := &fakeCitus{}
	c.set(answerShards, nil)
	for shard := range c.shards {
		c.shards[shard].set(answerShards, nil)
	}
	store := openShards(t, c, without)
	takeOne(t, store, ratelimit.Hit{Limit: fakeLimit, Key: "first", Cost: 1})
	return c, store
}

// answerShards is a server of Citus that admits every hit.
func answerShards(ctx context.Context, statements []*pgdb.Statement) error {
	switch s := statements[0]; s.SQL {
	case schema.ShardsReady:
		addRow(s, [][]byte{int4(1)})
	case schema.ShardNames:
		for shard := range testShards {
			addRow(s, [][]byte{fmt.Append(nil, "rl_s", shard)})
		}
	case schema.ShardRoutes:
		for shard := range int64(testShards) {
			for _, table := range []string{"rate_limit_ephemeral", "rate_limit_durable",
				"rate_limit_processes"} {
				name := fmt.Sprintf("rl_s%d.%s_1", shard, table)
				addRow(s,
					[][]byte{int4(shard + 1), []byte(table), []byte(name), []byte("rate_limit_guard(1)"),
						[]byte("host"), int4(shard)})
			}
		}
	default:
		return admit(ctx, statements)
	}
	return nil
}

func inShard(shard int) ratelimit.Hit {
	return ratelimit.Hit{Limit: fakeLimit, Key: keyIn(shard), Cost: 1}
}

func apartIn(shard int) ratelimit.Hit {
	h := inShard(shard)
	h.Apart = true
	return h
}

var errWorkerDown = errors.New("the worker is down")

// stop stops the server of a shard, and has the store find that.
func (c *fakeCitus) stop(t *testing.T, store *store.Store, shard int) {
	t.Helper()
	c.shards[shard].set(failWith(errWorkerDown), failWith(errWorkerDown))
	if _, _, err := tryOne(store, longTime, inShard(shard)); !errors.Is(err, ratelimit.ErrUnavailable) {
		t.Errorf("a shard that is down: %v", err)
	}
}

func TestAHitApartOfAShardThatIsDownFailsNothing(t *testing.T) {
	c, store := newFakeCitus(t)
	c.stop(t, store, 1)
	for name, hits := range map[string][]ratelimit.Hit{
		"before an enforced limit": {apartIn(1), inShard(2)},
		"before others apart":      {apartIn(1), apartIn(2), apartIn(1)},
	} {
		decisions := make([]ratelimit.Decision, len(hits))
		err := store.Take(context.Background(), longTime, hits, decisions)
		if err != nil || decisions[0].Source != ratelimit.Undecided ||
			decisions[1].Source != ratelimit.FromPostgres || !decisions[1].Allowed {
			t.Errorf("%s: %+v, %v", name, decisions, err)
		}
	}
}

func TestARefusalStandsIfTheHomeOfTheRequestIsDown(t *testing.T) {
	c, store := newFakeCitus(t)
	c.stop(t, store, 1)
	c.shards[2].set(refuse, nil)
	refund := inShard(1)
	refund.Subject = refund.Key
	refund.Cost = -1
	decisions := make([]ratelimit.Decision, 2)
	if err := store.Take(context.Background(), longTime, []ratelimit.Hit{inShard(2), refund},
		decisions); err != nil || decisions[0].Allowed {
		t.Errorf("%+v, %v", decisions, err)
	}
}

func TestARefusedRequestGivesBackToTheWindowOfItsCharge(t *testing.T) {
	c, store := newFakeCitus(t)
	c.shards[2].set(refuse, nil)
	var claims []int64
	c.shards[1].set(func(ctx context.Context, statements []*pgdb.Statement) error {
		for _, s := range statements {
			if strings.Contains(s.SQL, "$8") { // a refund or a settlement
				claims = append(claims, s.Args[len(s.Args)-1].([]int64)...)
			}
		}
		return admit(ctx, statements)
	}, nil)
	home := inShard(2)
	home.Subject = home.Key
	decisions := make([]ratelimit.Decision, 2)
	err := store.Take(context.Background(), longTime, []ratelimit.Hit{inShard(1), home}, decisions)
	if err != nil || decisions[1].Allowed || decisions[0].Remaining != 5 ||
		fmt.Sprint(claims) != fmt.Sprint([]int64{decisions[0].DecidedAt}) {
		t.Errorf("%+v, %v; given back with the times %v", decisions, err, claims)
	}
}

// failOnce fails the next hit on a shard. routesRead counts the reads of the shard's server for the
// routes. The store reads the identity of the server beside the hits.
func (c *fakeCitus) failOnce(shard int, code, text string) (routesRead *int) {
	failed, read := false, 0
	c.shards[shard].set(func(ctx context.Context, statements []*pgdb.Statement) error {
		switch {
		case statements[0].SQL == schema.ShardRoutes:
			read++
		case len(keysOf(statements[0])) > 0 && !failed:
			failed = true
			for _, s := range statements {
				serverError(s, code, text)
			}
			return nil
		}
		return answerShards(ctx, statements)
	}, nil)
	return &read
}

func TestOnlyAShardThatMovedHasItsRouteReadAgain(t *testing.T) {
	c, store := newFakeCitus(t)
	for text, want := range map[string]int{
		"could not serialize access due to concurrent update": 0,
		"ERROR: placement 7 is not here (SQLSTATE 40001)":     1,
		"placement 7 is being moved":                          1,
	} {
		read := c.failOnce(1, "40001", text)
		takeOne(t, store, inShard(1))
		if *read != want {
			t.Errorf("%s: the routes were read %d times, want %d", text, *read, want)
		}
	}
}

func TestEarlyLocalChargesAreBilledToTheirShards(t *testing.T) {
	c := &fakeCitus{}
	c.set(failWith(errWorkerDown), failWith(errWorkerDown))
	for shard := range c.shards {
		c.shards[shard].set(answerShards, nil)
	}
	store := newChain(t, c, without)
	store.UseLocal()
	h := hitOn("early", 10, true)
	h.Key = keyIn(3)
	if decisions := make([]ratelimit.Decision, 1); !store.TakeLocal(ratelimit.ErrUnavailable,
		[]ratelimit.Hit{h}, decisions) || !decisions[0].Allowed {
		t.Fatalf("%+v", decisions)
	}
	billed := make(chan int, testShards)
	for shard := range c.shards {
		c.shards[shard].set(func(ctx context.Context, statements []*pgdb.Statement) error {
			if slices.ContainsFunc(statements,
				func(s *pgdb.Statement) bool { return slices.Contains(keysOf(s), h.Key) }) {
				billed <- shard
			}
			return admit(ctx, statements)
		}, nil)
	}
	c.set(answerShards, nil)
	takeOne(t, store, inShard(1))
	store.ChargeDebts()
	if shard := <-billed; shard != 3 {
		t.Errorf("billed to shard %d, want 3", shard)
	}
}
