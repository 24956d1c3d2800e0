package engine_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// TestSynchronousCommitHoldsForTheTransaction looks in a trigger whether the commit of each
// charge waits for the disk: it does if one limit of the transaction requires that.
func TestSynchronousCommitHoldsForTheTransaction(t *testing.T) {
	s := newSite(t)
	s.exec(engine.TableSQL + `CREATE TABLE seen (prefix text, setting text);
		CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO seen VALUES
		(NEW.prefix, current_setting('synchronous_commit')); RETURN NEW; END $$;
		CREATE CONSTRAINT TRIGGER see AFTER INSERT OR UPDATE ON rate_limit_durable DEFERRABLE INITIALLY
		DEFERRED FOR EACH ROW EXECUTE FUNCTION see();
		CREATE CONSTRAINT TRIGGER see AFTER INSERT OR UPDATE ON rate_limit_ephemeral DEFERRABLE INITIALLY
		DEFERRED FOR EACH ROW EXECUTE FUNCTION see()`)
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
			got := s.text("SELECT coalesce(string_agg(setting, ' '), '') FROM seen WHERE prefix IN (" +
				strings.Join(names, ", ") + ")")
			if round != 1 && got != test.want {
				t.Errorf("%d, round %d: synchronous_commit is %s, want %s", i, round, got, test.want)
			}
		}
	}
}
