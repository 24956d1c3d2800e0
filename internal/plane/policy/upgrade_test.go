package policy_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// version0 creates an older version of the tables, without a view, an index and a comment.
const version0 = `DROP VIEW rate_limit_near;
	DROP INDEX rate_limit_bans_until;
	COMMENT ON TABLE rate_limit_rules IS 'The rules.';
	CREATE OR REPLACE FUNCTION rate_limit_policy_version() RETURNS int LANGUAGE sql
		IMMUTABLE PARALLEL SAFE AS 'SELECT 0'`

// A proxy upgrades the tables of an older version in place, while requests arrive with uncached API keys. It
// decides all the time: by the old tables while a transaction of another session prevents the upgrade, and by
// the new tables afterwards.
func TestAnUpgradeStopsNoDecision(t *testing.T) {
	const keys = 5000
	ctx := context.Background()
	s := newSite(t)
	cluster.Execute(t, s.dsn, version0)
	cluster.Execute(t, s.dsn, fmt.Sprintf(`
		INSERT INTO rate_limit_tiers (tier) VALUES ('free') ON CONFLICT DO NOTHING;
		INSERT INTO rate_limit_users (user_id, tier)
			SELECT 'user-' || i, 'free' FROM generate_series(1, %[1]d) i;
		INSERT INTO rate_limit_api_keys (digest, user_id)
			SELECT sha256(convert_to('key-' || i, 'UTF8')), 'user-' || i FROM generate_series(1, %[1]d) i;
		SELECT rate_limit_rule('plan', tiers => '{free}', per_hour => 1000)`, keys))
	p := s.policy(policy.Settings{MaxIdentities: 16})
	upgraded := func() bool {
		return s.number("SELECT count(*) FROM pg_class WHERE relname IN ('rate_limit_near', "+
			"'rate_limit_bans_until')") == 2 &&
			s.number("SELECT rate_limit_policy_version()") > 0
	}

	writer := s.begin()
	if _, err := writer.Exec(ctx,
		"UPDATE rate_limit_rules SET comment = 'not committed'; DELETE FROM rate_limit_bans"); err != nil {
		t.Fatal(err)
	}
	refresh(t, p)
	loading, stop := context.WithCancel(ctx)
	var load sync.WaitGroup
	var decisions atomic.Int64
	load.Add(1)
	go func() {
		defer load.Done()
		for ; loading.Err() == nil; decisions.Add(1) {
			user := fmt.Sprint("user-", 1+decisions.Load()%keys)
			got, err := tryDecide(p, "key-"+user[len("user-"):], "")
			if want := user + " free rule/plan/per_hour=1000"; err != nil || got != want {
				t.Errorf("got %q, %v, want %q", got, err, want)
				return
			}
		}
	}()
	// goesOn waits for further decisions.
	goesOn := func() {
		t.Helper()
		before := decisions.Load()
		await.Within(t, time.Minute, "further decisions",
			func() bool { return decisions.Load() >= before+20 })
	}
	for range 3 {
		s.after(time.Minute) // the next attempt is due
		refresh(t, p)
		goesOn()
	}
	if upgraded() {
		t.Error("the tables were changed while another session changed them")
	}
	if err := writer.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	await.Within(t, time.Minute, "the upgrade", func() bool { // the server may vacuum the tables
		s.after(time.Minute)
		refresh(t, p)
		return upgraded()
	})
	goesOn()
	stop()
	load.Wait()
	if s.number("SELECT count(*) WHERE obj_description('rate_limit_rules'::regclass) = 'The rules.'") != 0 {
		t.Error("the comment is that of the older version")
	}
	if n := s.number("SELECT count(*) FROM rate_limit_api_keys"); n != keys {
		t.Errorf("got %d API keys, want %d", n, keys)
	}
	same(t, "afterwards", decided(t, p, "key-1", ""), "user-1 free rule/plan/per_hour=1000")
}
