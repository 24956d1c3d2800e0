package postgres_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/slownet"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// slowDB delays the statements of a DB at random.
type slowDB struct {
	postgres.DB
	most time.Duration
}

func (d slowDB) Run(ctx context.Context, statements []*postgres.Statement) error {
	time.Sleep(rand.N(d.most))
	err := d.DB.Run(ctx, statements)
	time.Sleep(rand.N(d.most))
	return err
}

// TestExactlyTheQuotaPasses sends 60 requests at once that each need one of three rows with
// room for 10 and a shared row with room for 15: exactly 15 pass, and the rows are charged
// for these. Every definition shares with another, in the same or another table.
func TestExactlyTheQuotaPasses(t *testing.T) {
	s := newSite(t)
	s.exec(postgres.TableSQL)
	users, shared := conformance.Limits("user ", 10), conformance.Limits("all ", 15)
	for i, user := range users {
		for j := range 4 {
			for stores := 1; stores <= 3; stores++ {
				if (i+j)%3 != stores-1 && conformance.Long() == 1 {
					continue
				}
				t.Run(fmt.Sprint(user.Prefix, " ", j, " of ", stores), func(t *testing.T) {
					user, all := *user, *shared[(i+j)%len(shared)]
					user.Prefix = fmt.Sprint(user.Prefix, stores, j)
					all.Prefix = fmt.Sprint(all.Prefix, stores, i, j)
					// Limits in a year refill nothing during the test.
					for _, l := range []*ratelimit.Limit{&user, &all} {
						if l.Calendar == ratelimit.NoCalendar {
							l.Window = 365 * 24 * time.Hour
						}
					}
					user.Durable, all.Durable = j&1 == 1, j&2 == 2
					user.SynchronousCommit, all.SynchronousCommit = i%2 == 0, i%3 == 0
					exactlyTheQuota(t, s, stores, &user, &all, int64(1+(i+j)%2))
				})
			}
		}
	}
}

// exactlyTheQuota sends 60 requests to so many stores. Half of them ask for another cost of
// the user's row than the others, and some of them ask or give back besides.
func exactlyTheQuota(t *testing.T, s *site, stores int, user, all *ratelimit.Limit, otherCost int64) {
	aside := hitOn("aside "+all.Prefix, 1000, true)
	var all3 []*postgres.Store
	for range stores {
		o := postgres.Options{CleanupProbability: -1, DisableMigration: true, Workers: 1 + rand.IntN(4), MaxBlockedKeys: rand.IntN(2) - 1}
		all3 = append(all3, s.storeOn(slowDB{drivers.All[[]string{"pgwire", "pgxdb"}[rand.IntN(2)]](t, s.dsn), 10 * time.Millisecond}, o))
	}
	var mu sync.Mutex
	charged := map[string]int64{}
	var group sync.WaitGroup
	for i := range 60 {
		group.Go(func() {
			time.Sleep(rand.N(20 * time.Millisecond))
			hits := []ratelimit.Hit{{Limit: user, Key: fmt.Sprint(i % 3), Cost: 1}, {Limit: all, Key: "k", Cost: 1}}
			if i%2 == 0 {
				hits[0].Cost = otherCost
			}
			if i%5 == 0 {
				peek, refund := aside, aside
				peek.Key, peek.Peek = "peek", true
				refund.Key, refund.Cost = "refund", -1
				hits = append(hits, peek, refund)
			}
			if passes(t, all3[i%stores], hits...) {
				mu.Lock()
				defer mu.Unlock()
				charged["all"]++
				charged[hits[0].Key] += hits[0].Cost
			}
		})
	}
	group.Wait()
	store := all3[0]
	if left := left(t, store, ratelimit.Hit{Limit: all, Key: "k"}); left != 15-charged["all"] {
		t.Errorf("%d requests passed, and %d of 15 are left", charged["all"], left)
	}
	used := int64(0)
	for _, key := range []string{"0", "1", "2"} {
		used += charged[key]
		if left := left(t, store, ratelimit.Hit{Limit: user, Key: key}); left != 10-charged[key] {
			t.Errorf("requests for %d passed, and %d of 10 are left of user %s", charged[key], left, key)
		}
	}
	if charged["all"] != 15 {
		t.Errorf("%d of 60 requests passed; the quota is 15", charged["all"])
	}
	s.noLocks()
	for _, store := range all3 {
		store.Close()
	}
}

// noLocks fails if a transaction is open or holds a lock on the tables.
func (s *site) noLocks() {
	s.t.Helper()
	await.Within(s.t, 20*time.Second, "all locks to be released", func() bool {
		return s.text(`SELECT count(*)::text FROM pg_locks WHERE pid <> pg_backend_pid() AND (locktype = 'transactionid' OR relation::regclass::text LIKE 'rate_limit%')
			AND (database = (SELECT oid FROM pg_database WHERE datname = current_database()) OR database IS NULL AND pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database()))`) == "0"
	})
}

// TestRefusedRequestsAreNeverVisible polls a row with room for many while requests that
// another limit refuses come for it: no other connection ever sees a charge of them.
func TestRefusedRequestsAreNeverVisible(t *testing.T) {
	s := newSite(t)
	s.exec(postgres.TableSQL)
	open, closed := hitOn("open", 1000, false), hitOn("closed", 1, true)
	o := without
	o.DisableMigration = true
	first := s.store(o)
	passes(t, first, open, closed)
	var refused atomic.Int64
	var group sync.WaitGroup
	until := time.Now().Add(time.Duration(conformance.Long()) * 2 * time.Second)
	for _, store := range []*postgres.Store{first, s.storeOn(drivers.All["pgwire"](t, s.dsn), o)} {
		for i := range 8 {
			group.Go(func() {
				for time.Now().Before(until) {
					other := open
					other.Limit = hitOn(fmt.Sprint("open", i), 1000, true).Limit
					if passes(t, store, open, closed, other) {
						t.Error("a limit was used up")
					}
					refused.Add(1)
					passes(t, store, other) // a batch without a refusal: the next takes before it looks
				}
			})
		}
	}
	for time.Now().Before(until) {
		if got := s.text("SELECT max(count)::text FROM rate_limit_ephemeral"); got != "1" {
			t.Fatalf("a charge of %s is visible; requests for 1 were admitted", got)
		}
	}
	group.Wait()
	if stats := first.Stats(); refused.Load() < 100 || stats.RolledBack == 0 {
		t.Errorf("%d requests were refused, %+v", refused.Load(), stats)
	}
	s.noLocks()
}

// TestRefusedClientsDoNotStarveOthers: over a connection with a round trip of 30 ms, some
// clients have used up their own limit and keep asking for a shared limit. Every request of a
// client that fits is admitted.
func TestRefusedClientsDoNotStarveOthers(t *testing.T) {
	for stores := 1; stores <= 2; stores++ {
		t.Run(fmt.Sprint(stores, " stores"), func(t *testing.T) {
			s := newSite(t)
			s.exec(postgres.TableSQL)
			const refusedKeys, quota = 30_000, 60
			own := &ratelimit.Limit{Prefix: "own", Algorithm: ratelimit.FixedWindow, Events: 1, Window: 24 * time.Hour}
			shared := ratelimit.Hit{Limit: &ratelimit.Limit{Prefix: "shared", Algorithm: ratelimit.TokenBucket, Events: quota, Window: 24 * time.Hour}, Key: "k", Cost: 1}
			s.exec(`INSERT INTO rate_limit_ephemeral (prefix, key, count, prev_count, window_start, expires_at)
				SELECT 'own', n::text, 1, 0, now(), now() + interval '1 day' FROM generate_series(1, $1) n`, refusedKeys)
			s.exec("ANALYZE")
			var all []*postgres.Store
			for range stores {
				_, dsn := slownet.ListenFor(t, s.dsn, 30*time.Millisecond)
				all = append(all, s.storeOn(drivers.All["pgxdb"](t, dsn), postgres.Options{DisableMigration: true, MaxBlockedKeys: 100}))
			}
			var refused atomic.Int64
			var group sync.WaitGroup
			stop := make(chan struct{})
			started := time.Now()
			for i := range 150 {
				group.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
						}
						h := ratelimit.Hit{Limit: own, Key: fmt.Sprint(1 + rand.IntN(refusedKeys)), Cost: 1}
						if passes(t, all[i%stores], h, shared) {
							t.Error("a client without quota passed")
						}
						refused.Add(1)
					}
				})
			}
			for i := range quota {
				good := ratelimit.Hit{Limit: own, Key: fmt.Sprint("good", i), Cost: 1}
				decisions := make([]ratelimit.Decision, 2)
				err := all[i%stores].Take(context.Background(), longTime, []ratelimit.Hit{good, shared}, decisions)
				if err != nil || !allAllowed(decisions) {
					t.Errorf("request %d of %d: %v, %+v", i, quota, err, decisions)
				}
			}
			took := time.Since(started)
			close(stop)
			group.Wait()
			if rate := float64(refused.Load()) / took.Seconds(); rate < 500 {
				t.Errorf("only %.0f refused requests a second", rate)
			} else {
				t.Logf("%.0f refused requests a second; %d good requests in %v", rate, quota, took)
			}
			if got := s.text("SELECT tokens::text FROM rate_limit_ephemeral WHERE prefix = 'shared'"); got != "0" {
				t.Errorf("%s tokens are left", got)
			}
		})
	}
}

// TestSynchronousCommitHoldsForTheTransaction looks in a trigger whether the commit of each
// charge waits for the disk: it does if one limit of the transaction wants that.
func TestSynchronousCommitHoldsForTheTransaction(t *testing.T) {
	s := newSite(t)
	s.exec(postgres.TableSQL + `CREATE TABLE seen (prefix text, setting text);
		CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO seen VALUES (NEW.prefix, current_setting('synchronous_commit')); RETURN NEW; END $$;
		CREATE CONSTRAINT TRIGGER see AFTER INSERT OR UPDATE ON rate_limit_durable DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION see();
		CREATE CONSTRAINT TRIGGER see AFTER INSERT OR UPDATE ON rate_limit_ephemeral DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION see()`)
	store := s.store(postgres.Options{CleanupProbability: -1, MaxBlockedKeys: -1, DisableMigration: true})
	limit := func(a ratelimit.Algorithm, durable, sync bool) ratelimit.Hit {
		h := hitOn("", 1, durable)
		h.Limit.Algorithm, h.Limit.SynchronousCommit = a, sync
		return h
	}
	for i, test := range []struct {
		hits []ratelimit.Hit
		want string // the settings that were seen
	}{
		{[]ratelimit.Hit{limit(1, true, false)}, "off"},
		{[]ratelimit.Hit{limit(1, true, true)}, "on"},
		{[]ratelimit.Hit{limit(1, true, false), limit(2, true, false)}, "off off"},
		{[]ratelimit.Hit{limit(1, true, false), limit(2, true, true)}, "on on"},
		{[]ratelimit.Hit{limit(1, true, true), limit(2, true, false)}, "on on"},
		{[]ratelimit.Hit{limit(1, true, true), limit(1, true, false), limit(4, false, false)}, "on on on"},
		{[]ratelimit.Hit{limit(0, false, false), limit(3, true, false)}, "off off"},
	} {
		for round := range 3 { // the second is refused, so the third looks before it takes
			var names []string
			for j := range test.hits {
				prefix := fmt.Sprint(i, "/", j, "/", round/2)
				test.hits[j].Limit.Prefix = prefix
				names = append(names, "'"+prefix+"'")
			}
			s.exec("TRUNCATE seen")
			if allowed := passes(t, store, test.hits...); allowed != (round != 1) {
				t.Fatalf("%d, round %d: %v", i, round, allowed)
			}
			got := s.text("SELECT coalesce(string_agg(setting, ' '), '') FROM seen WHERE prefix IN (" + strings.Join(names, ", ") + ")")
			if round != 1 && got != test.want {
				t.Errorf("%d, round %d: synchronous_commit is %s, want %s", i, round, got, test.want)
			}
		}
	}
}
