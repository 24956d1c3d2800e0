package engine_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// noLocks fails if a transaction is open or holds a lock on the tables.
func (s *site) noLocks() {
	s.t.Helper()
	await.Within(s.t, longTime, "all locks to be released", func() bool {
		return s.text(`SELECT count(*)::text FROM pg_locks WHERE pid <> pg_backend_pid() AND (locktype = 'transactionid' OR relation::regclass::text LIKE 'rate_limit%')
			AND (database = (SELECT oid FROM pg_database WHERE datname = current_database()) OR database IS NULL AND pid IN (SELECT pid FROM pg_stat_activity WHERE datname = current_database()))`) == "0"
	})
}

// TestRefusedRequestsAreNeverVisible polls a row with room for many while requests that
// another limit refuses come for it: no other connection ever sees a charge of them.
func TestRefusedRequestsAreNeverVisible(t *testing.T) {
	s := newSite(t)
	s.exec(engine.TableSQL)
	open, closed := hitOn("open", 1000, false), hitOn("closed", 1, true)
	o := without
	o.DisableMigration = true
	first := s.store(o)
	passes(t, first, open, closed)
	var refused atomic.Int64
	var group sync.WaitGroup
	until := time.Now().Add(time.Duration(conformance.Long()) * 2 * time.Second)
	goesOn := func() bool {
		few := refused.Load() < 100 || first.Stats().RolledBack == 0
		return time.Now().Before(until) || few && time.Since(until) < time.Minute
	}
	for _, store := range []*engine.Store{first, s.storeOn(drivers.All["pgwire"](t, s.dsn), o)} {
		for i := range 8 {
			group.Go(func() {
				for goesOn() {
					other := open
					other.Limit = hitOn(fmt.Sprint("open", i), 1000, true).Limit
					if passes(t, store, open, closed, other) {
						t.Error("a limit was used up")
					}
					refused.Add(1)
					store.TakeFirst()
				}
			})
		}
	}
	for goesOn() {
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

// TestSynchronousCommitHoldsForTheTransaction looks in a trigger whether the commit of each
// charge waits for the disk: it does if one limit of the transaction wants that.
func TestSynchronousCommitHoldsForTheTransaction(t *testing.T) {
	s := newSite(t)
	s.exec(engine.TableSQL + `CREATE TABLE seen (prefix text, setting text);
		CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO seen VALUES (NEW.prefix, current_setting('synchronous_commit')); RETURN NEW; END $$;
		CREATE CONSTRAINT TRIGGER see AFTER INSERT OR UPDATE ON rate_limit_durable DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION see();
		CREATE CONSTRAINT TRIGGER see AFTER INSERT OR UPDATE ON rate_limit_ephemeral DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION see()`)
	store := s.store(engine.Options{CleanupProbability: -1, NoRefusals: true, DisableMigration: true})
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
