package engine_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// A commit waits for the disk if a limit of the transaction requires that. A trigger records the setting.
func TestSynchronousCommitOfTransaction(t *testing.T) {
	s := newTestDB(t)
	s.exec(engine.TableSQL + `CREATE TABLE seen (prefix text, setting text);
		CREATE FUNCTION see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO seen VALUES
		(NEW.prefix, current_setting('synchronous_commit')); RETURN NEW; END $$;
		CREATE CONSTRAINT TRIGGER see AFTER INSERT OR UPDATE ON rate_limit_durable DEFERRABLE INITIALLY
		DEFERRED FOR EACH ROW EXECUTE FUNCTION see();
		CREATE CONSTRAINT TRIGGER see AFTER INSERT OR UPDATE ON rate_limit_ephemeral DEFERRABLE INITIALLY
		DEFERRED FOR EACH ROW EXECUTE FUNCTION see()`)
	store := s.openEngine(engine.Options{
		CleanupProbability: -1, DisableRememberedRefusals: true, DisableMigration: true})
	hit := func(a ratelimit.Algorithm, durable, sync bool) ratelimit.Hit {
		h := hitOn("", 1, durable)
		h.Limit.Algorithm, h.Limit.SynchronousCommit = a, sync
		return h
	}
	for i, test := range []struct {
		hits []ratelimit.Hit
		want string // synchronous_commit of each charge
	}{
		{[]ratelimit.Hit{hit(1, true, false)}, "off"},
		{[]ratelimit.Hit{hit(1, true, true)}, "on"},
		{[]ratelimit.Hit{hit(1, true, false), hit(2, true, false)}, "off off"},
		{[]ratelimit.Hit{hit(1, true, false), hit(2, true, true)}, "on on"},
		{[]ratelimit.Hit{hit(1, true, true), hit(2, true, false)}, "on on"},
		{[]ratelimit.Hit{hit(1, true, true), hit(1, true, false), hit(4, false, false)}, "on on on"},
		{[]ratelimit.Hit{hit(0, false, false), hit(3, true, false)}, "off off"},
	} {
		for round := range 3 { // the second request is refused, so the third one peeks before it takes
			var names []string
			for j := range test.hits {
				prefix := fmt.Sprint(i, "/", j, "/", round/2)
				test.hits[j].Limit.Prefix = prefix
				names = append(names, "'"+prefix+"'")
			}
			s.exec("TRUNCATE seen")
			if allowed := takeAll(t, store, test.hits...); allowed != (round != 1) {
				t.Fatalf("test %d, round %d: allowed %v, want %v", i, round, allowed, round != 1)
			}
			got := s.queryText("SELECT coalesce(string_agg(setting, ' '), '') FROM seen WHERE prefix IN (" +
				strings.Join(names, ", ") + ")")
			if round != 1 && got != test.want {
				t.Errorf("test %d, round %d: synchronous_commit is %s, want %s", i, round, got, test.want)
			}
		}
	}
}
