package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// crowd is two stores, over both drivers, and what they tell.
type crowd struct {
	*site
	stores []*postgres.Store

	mu   sync.Mutex
	told map[string]int // how many times each text was told
}

func newCrowd(t *testing.T) *crowd {
	c := &crowd{site: newSite(t), told: map[string]int{}}
	c.exec(postgres.TableSQL)
	for name, open := range drivers.All {
		store := c.storeOn(open(t, c.dsn), postgres.Options{CleanupProbability: -1, Node: &postgres.Node{Name: name, Epoch: 1, Notice: func(text string) {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.told[text]++
		}}})
		store.Prepare()
		c.stores = append(c.stores, store)
	}
	return c
}

// others fills prefixes with rows of other keys that count for an hour.
func (c *crowd) others(n int, limits ...*ratelimit.Limit) {
	c.t.Helper()
	for _, l := range limits {
		table := map[bool]string{false: "rate_limit_ephemeral", true: "rate_limit_durable"}[l.Durable]
		c.exec("DELETE FROM "+table+" WHERE prefix = $1 AND key LIKE 'filler%'", l.Prefix)
		c.exec("INSERT INTO "+table+" (prefix, key, count, prev_count, window_start, expires_at) SELECT $1, 'filler' || n, 1, 0, now(), now() + interval '1 hour' FROM generate_series(1, $2::int) n", l.Prefix, n)
	}
}

// await waits until all stores have told a text so many times.
func (c *crowd) await(times int, l *ratelimit.Limit, text string) {
	c.t.Helper()
	await.Within(c.t, 30*time.Second, l.Prefix+": "+text, func() bool {
		for _, store := range c.stores { // a prefix that is not in use is not watched
			takeOne(c.t, store, ratelimit.Hit{Limit: l, Key: "in use", Cost: 1, Peek: true})
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.told[fmt.Sprintf("prefix %q has %s", l.Prefix, text)] >= times*len(c.stores)
	})
}

// Beyond MaxKeys, new keys share one quota in all processes. Keys with a row go on with it. When there
// are few keys again, no key gets a second quota.
func TestNewKeysShareAQuota(t *testing.T) {
	const quota = 20
	c := newCrowd(t)
	var limits []*ratelimit.Limit
	for _, durable := range []bool{false, true} {
		for _, l := range conformance.Limits(fmt.Sprint(durable, "-"), quota) {
			if l.Algorithm != ratelimit.InFlight {
				l.Durable = durable
				l.MaxKeys = 50
				limits = append(limits, l)
			}
		}
	}
	passed := func(l *ratelimit.Limit, key string, times int) (n int) {
		for i := range times {
			if takeOne(t, c.stores[i%len(c.stores)], ratelimit.Hit{Limit: l, Key: strings.ReplaceAll(key, "*", fmt.Sprint(i)), Cost: 1}).Allowed {
				n++
			}
		}
		return n
	}
	rows := func(l *ratelimit.Limit, keys string) string {
		return c.text("SELECT count(*)::text FROM (SELECT * FROM rate_limit_ephemeral UNION ALL SELECT * FROM rate_limit_durable) r WHERE prefix = $1 AND key LIKE $2", l.Prefix, keys)
	}
	for _, l := range limits {
		if n := passed(l, "early", 3) + passed(l, "few *", 4); n != 7 {
			t.Errorf("%s: %d hits of few keys pass, want 7", l.Prefix, n)
		}
	}
	c.others(100, limits...)
	for _, l := range limits {
		c.await(1, l, "more than 50 keys: new keys share one counter")
		if n := passed(l, "early", 2*quota); n != quota-3 {
			t.Errorf("%s: %d more hits of an early key pass, want %d", l.Prefix, n, quota-3)
		}
		several := []ratelimit.Hit{{Limit: l, Key: "one", Cost: 1}, {Limit: limits[0], Key: "two of " + l.Prefix, Cost: 1}}
		if several[1].Limit == l {
			several = several[:1]
		}
		decisions := make([]ratelimit.Decision, len(several))
		if err := c.stores[0].Take(context.Background(), longTime, several, decisions); err != nil || decisions[0].Remaining != quota-1 && len(several) == 1 {
			t.Errorf("%s: several hits: %+v, %v", l.Prefix, decisions, err)
		}
		used := 0
		if allAllowed(decisions) {
			used = 1
		}
		if n := used + passed(l, "new *", 3*quota); n != quota {
			t.Errorf("%s: %d hits of new keys pass, want %d", l.Prefix, n, quota)
		}
		rule := *l
		rule.Prefix, rule.MaxKeys = "rule of "+l.Prefix, 0
		both := []ratelimit.Hit{{Limit: l, Key: "newest", Cost: 1}, {Limit: &rule, Key: "newest", Cost: 1}}
		if err := c.stores[0].Take(context.Background(), longTime, both, make([]ratelimit.Decision, 2)); err != nil || rows(&rule, "%") != "0" {
			t.Errorf("%s: a key that the shared quota refuses has %s rows of another prefix, %v", l.Prefix, rows(&rule, "%"), err)
		}
		if d := takeOne(t, c.stores[1], ratelimit.Hit{Limit: l, Key: "asks", Cost: 1, Peek: true}); d.Allowed || d.Remaining != 0 || d.RetryAfter <= 0 {
			t.Errorf("%s: a new key that asks: %+v", l.Prefix, d)
		}
		refund := ratelimit.Hit{Limit: l, Key: "refunded", Cost: -5}
		if d := takeOne(t, c.stores[0], refund); passed(l, "newer *", 4) != 0 || !d.Allowed || d.Shared || refund.Cost != -5 {
			t.Errorf("%s: a refund of a key without a charge gave something back to all: %+v", l.Prefix, d)
		}
		for _, table := range []string{"rate_limit_ephemeral", "rate_limit_durable"} {
			c.exec("UPDATE "+table+" SET expires_at = now() - interval '1 second' WHERE prefix = $1 AND key = 'few 0'", l.Prefix)
		}
		if n := passed(l, "few 0", 2*quota); n != quota-1 {
			t.Errorf("%s: %d more hits pass of a key whose row waits for the cleanup, want %d", l.Prefix, n, quota-1)
		}
		if n := rows(l, "refunded"); n != "0" {
			t.Errorf("%s: a refund made a row", l.Prefix)
		}
		if n := rows(l, "new%"); n != "0" {
			t.Errorf("%s: %s new keys have rows", l.Prefix, n)
		}
	}
	c.others(10, limits...)
	for _, l := range limits {
		c.await(1, l, "at most 50 keys again: new keys have counters of their own")
		if n := passed(l, "new *", 10); n != 0 {
			t.Errorf("%s: %d hits of keys that shared a quota pass", l.Prefix, n)
		}
		if n := rows(l, "new%"); n != "10" {
			t.Errorf("%s: %s of 10 keys have rows again", l.Prefix, n)
		}
		late := ratelimit.Hit{Limit: l, Key: "late", Cost: 1}
		if first, second := takeOne(t, c.stores[0], late), takeOne(t, c.stores[1], late); !first.Shared || second.Shared {
			t.Errorf("%s: refused by what keys shared: %+v, and then by itself: %+v", l.Prefix, first, second)
		}
		c.exec("UPDATE "+map[bool]string{false: "rate_limit_ephemeral", true: "rate_limit_durable"}[l.Durable]+" SET expires_at = now() WHERE prefix = $1 AND key = 'sha256:(other)'", l.Prefix)
		if d := takeOne(t, c.stores[0], ratelimit.Hit{Limit: l, Key: "fresh", Cost: 1}); d.Remaining != quota-1 {
			t.Errorf("%s: after the time of the shared quota: %+v", l.Prefix, d)
		}
	}
	c.nothingReported()
}

// While sharing begins and ends, no key passes more than by a row of its own, except for hits under way just then.
func TestNoKeyPassesMoreWhileSharingBeginsAndEnds(t *testing.T) {
	const quota = 5
	c := newCrowd(t)
	l := &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: quota, Window: time.Hour, MaxKeys: 20_000}
	var mu sync.Mutex
	passed := map[string]int{}
	ctx, stop := context.WithCancel(t.Context())
	var group sync.WaitGroup
	for _, store := range c.stores {
		for range 6 {
			group.Go(func() {
				for i := 0; ctx.Err() == nil; i++ {
					key := fmt.Sprint(time.Now().UnixMilli()/20 - int64(i%8))
					if takeOne(t, store, ratelimit.Hit{Limit: l, Key: key, Cost: 1}).Allowed {
						mu.Lock()
						passed[key]++
						mu.Unlock()
					}
				}
			})
		}
	}
	rounds := 1 + conformance.Long()
	for i := range rounds {
		c.others(25_000, l)
		c.await(i+1, l, "more than 20000 keys: new keys share one counter")
		c.others(10, l)
		c.await(i+1, l, "at most 20000 keys again: new keys have counters of their own")
		c.exec("UPDATE rate_limit_ephemeral SET count = 0 WHERE key = 'sha256:(other)'") // so that keys share again
	}
	stop()
	group.Wait()
	over := 0
	for _, n := range passed {
		over += max(0, n-quota)
	}
	t.Logf("%d keys, %d hits beyond their quotas in %d rounds", len(passed), over, rounds)
	if over > 2*quota*rounds || len(passed) < 50 {
		t.Errorf("%d hits of %d keys passed beyond their quotas", over, len(passed))
	}
	c.nothingReported()
}

// A locked row of one key does not fail the decisions on other keys of the prefix that begin with what the
// shared quota has left.
func TestALockedRowFailsOnlyItsKeyAfterSharing(t *testing.T) {
	s := newSite(t)
	s.exec(postgres.TableSQL)
	store := s.store(postgres.Options{CleanupProbability: -1})
	l := &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.FixedWindow, Events: 5, Window: time.Hour, MaxKeys: 10}
	s.exec(`INSERT INTO rate_limit_ephemeral (prefix, key, count, prev_count, window_start, expires_at)
		SELECT 'p', key, 2, 0, now(), now() + interval '1 hour' FROM unnest('{sha256:(other),locked}'::text[]) key`)
	s.exec("BEGIN; SELECT FROM rate_limit_ephemeral WHERE key = 'locked' FOR UPDATE")
	defer s.exec("ROLLBACK")
	var calls []*batch.Call
	for _, key := range []string{"a", "locked", "z"} {
		calls = append(calls, callFor(false, ratelimit.Hit{Limit: l, Key: key, Cost: 1}))
	}
	takeOne(t, store, ratelimit.Hit{Limit: l, Key: "first", Cost: 1}) // from the second batch on, keys are bounded
	store.DecideBatchWithin(time.Second, calls)
	for i, c := range calls {
		batch.Wait(c)
		if locked := i == 1; locked != (c.Err != nil) || !locked && c.Decisions[0].Remaining != 2 {
			t.Errorf("key %d: %+v, %v", i, c.Decisions, c.Err)
		}
	}
}

// floodDB is a database with too many keys under all prefixes once flooded is 1. All keys are without rows.
type floodDB struct {
	fakeDB
	flooded, lost, copies atomic.Int32 // lost: how many rows there are is not to be had
}

func (d *floodDB) Run(ctx context.Context, statements []*postgres.Statement) error {
	if len(statements) != 2 || !strings.Contains(statements[1].SQL, "$3::text[]") || returnsRows(statements[1]) {
		if len(statements) == 2 && strings.Contains(statements[1].SQL, "rate_limit_ephemeral AS r (prefix, key, count, prev_count, window_start, expires_at") {
			return hang(ctx, nil) // a count
		}
		return d.fakeDB.Run(ctx, statements)
	}
	s := statements[1]
	switch {
	case strings.Contains(s.SQL, "INSERT"):
		d.copies.Add(1)
	case !strings.Contains(s.SQL, "r.granted"): // which keys have rows
	case d.lost.Load() == 1:
		serverError(s, "57014", "canceling statement")
	default:
		for i := range keysOf(s) {
			over := int64(-1)
			if d.flooded.Load() == 1 {
				over = 5 * conformance.Second
			}
			addRow(s, [][]byte{int8(int64(i + 1)), int8(100), int8(10 * conformance.Second), int8(over), int8(0)})
		}
	}
	return nil
}

func hitOfFlood(prefix string) ratelimit.Hit {
	return ratelimit.Hit{Limit: &ratelimit.Limit{Prefix: prefix, Algorithm: ratelimit.FixedWindow, Events: 5, Window: time.Hour, MaxKeys: 10}, Key: "k", Cost: 1}
}

// A count that takes long does not delay that the keys of other prefixes share.
func TestASlowCountDelaysNoOtherPrefix(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &floodDB{}
		store := newStore(t, db, without)
		prefixes := []string{"p", "q", "r"}
		for range 2 {
			for _, prefix := range prefixes {
				takeOne(t, store, hitOfFlood(prefix))
			}
		}
		time.Sleep(1200 * time.Millisecond) // a count is under way
		db.flooded.Store(1)
		time.Sleep(1200 * time.Millisecond)
		for _, prefix := range prefixes {
			if d := takeOne(t, store, hitOfFlood(prefix)); !d.Shared {
				t.Errorf("prefix %s: a new key does not share: %+v", prefix, d)
			}
		}
		store.Close()
	})
}

// A process that has not learned for a while whether keys share gives new keys what the shared quota has left.
func TestAnOldAnswerGivesNoSecondQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &floodDB{}
		store := newStore(t, db, without)
		for range 2 {
			takeOne(t, store, hitOfFlood("p"))
		}
		if db.lost.Store(1); db.copies.Load() != 0 {
			t.Error("copies of the shared row although the answer is new")
		}
		time.Sleep(2 * time.Second)
		if takeOne(t, store, hitOfFlood("p")); db.copies.Load() != 1 {
			t.Errorf("%d copies of the shared row, want 1", db.copies.Load())
		}
		store.Close()
	})
}

// inParts is a database with two parts.
type inParts struct{ fakeDB }

func (d *inParts) Run(ctx context.Context, statements []*postgres.Statement) error {
	s := statements[0]
	switch s.SQL {
	case schema.PartsReady:
		addRow(s, [][]byte{int8(1)})
	case schema.PartNames:
		addRow(s, [][]byte{[]byte("rl_p0")})
		addRow(s, [][]byte{[]byte("rl_p1")})
	case schema.PartRoutes:
		for part := range 2 {
			for _, table := range []string{"rate_limit_ephemeral", "rate_limit_durable", "rate_limit_processes"} {
				addRow(s, [][]byte{int8(int64(part + 1)), []byte(table), []byte(table + "_1"), []byte("guard()"), []byte("localhost"), int8(1)})
			}
		}
	default:
		return d.fakeDB.Run(ctx, statements)
	}
	return nil
}

func (d *inParts) At(string, int) (postgres.DB, error) { return d, nil }

// In parts, a limit with MaxKeys is decided like one without, and the operator learns that once.
func TestMaxKeysBoundsNothingInParts(t *testing.T) {
	db := &inParts{}
	db.answer = func(ctx context.Context, statements []*postgres.Statement) error {
		for _, s := range statements {
			if strings.Contains(s.SQL, "rate_limit_ephemeral t") {
				t.Errorf("a statement on a table that the part does not have: %s", s.SQL)
			}
		}
		return admit(ctx, statements)
	}
	var mu sync.Mutex
	var reported []error
	store := newStore(t, db, postgres.Options{CleanupProbability: -1, OnError: func(err error) {
		mu.Lock()
		defer mu.Unlock()
		reported = append(reported, err)
	}})
	l := *fakeLimit
	l.MaxKeys = 10
	for i := range 40 {
		if _, _, err := tryOne(store, longTime, ratelimit.Hit{Limit: &l, Key: fmt.Sprint(i), Cost: 1}); err != nil {
			t.Fatal(err)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(reported) != 1 || !strings.Contains(fmt.Sprint(reported), "max_keys bounds nothing, because the counts are in parts") {
		t.Errorf("reported: %v", reported)
	}
}

// Tables that were dropped are made again, also if requests find that out by the question how many keys there are.
func TestDroppedTablesComeBackWithMaxKeys(t *testing.T) {
	s := newSite(t)
	store := s.store(postgres.Options{CleanupProbability: -1, OnError: func(error) {}})
	on := func(prefix string) ratelimit.Hit {
		return ratelimit.Hit{Limit: &ratelimit.Limit{Prefix: prefix, Events: 5, Window: time.Hour, MaxKeys: 10}, Key: "k", Cost: 1}
	}
	for range 3 {
		takeOne(t, store, on("known"))
	}
	s.exec("DROP TABLE rate_limit_ephemeral, rate_limit_durable")
	await.Within(t, 20*time.Second, "decisions on a prefix that is new", func() bool {
		_, _, err := tryOne(store, longTime, on("new"))
		return err == nil
	})
	if d := takeOne(t, store, on("known")); d.Remaining != 4 {
		t.Errorf("%+v", d)
	}
}
