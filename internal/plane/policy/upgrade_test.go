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

// version0 changes the tables into an older version, without a view, an index and a comment.
const version0 = `DROP VIEW rate_limit_near;
	DROP INDEX rate_limit_bans_until;
	COMMENT ON TABLE rate_limit_rules IS 'The rules.';
	ALTER TABLE rate_limit_rules
		DROP CONSTRAINT count_by_must_be_of_user_key_tier_ip_host_route_header_or_all,
		ADD CONSTRAINT count_by_must_be_of_user_key_tier_ip_host_route_header_or_all
			CHECK (count_by <@ '{user,ip,ip/64,user|ip/64}'),
		DROP CONSTRAINT without_header_must_be_share_or_skip_or_refuse,
		ADD CONSTRAINT without_header_must_be_share_or_skip CHECK (without_header IN ('share', 'skip'));
	CREATE OR REPLACE FUNCTION rate_limit_policy_version() RETURNS int LANGUAGE sql
		IMMUTABLE PARALLEL SAFE AS 'SELECT 0'`

// keyCount is the number of API keys in the older version.
const keyCount = 5000

// newOlderTestDB creates a database with tables of an older version, a rule, and API keys named key-1 and so
// on.
func newOlderTestDB(t *testing.T) *testDB {
	d := newTestDB(t)
	cluster.Execute(t, d.dsn, version0+fmt.Sprintf(`;
		INSERT INTO rate_limit_users (user_id, tier)
			SELECT 'user-' || i, 'free' FROM generate_series(1, %[1]d) i;
		INSERT INTO rate_limit_api_keys (digest, user_id)
			SELECT sha256(convert_to('key-' || i, 'UTF8')), 'user-' || i FROM generate_series(1, %[1]d) i;
		SELECT rate_limit_rule('plan', tiers => '{free}', per_hour => 1000);
		SELECT rate_limit_rule('network', tiers => '{pro}', count_by => '{user|ip/64}', per_hour => 9);
		SELECT rate_limit_rule('both', tiers => '{pro}', count_by => '{ip,ip/64}', per_hour => 9);
		SELECT rate_limit_rule('address', tiers => '{pro}', count_by => '{ip}', per_hour => 9)`, keyCount))
	return d
}

// isUpgraded reports whether the tables have the current version.
func (d *testDB) isUpgraded() bool {
	return d.queryInt(`SELECT count(*) FROM pg_class
		WHERE relname IN ('rate_limit_near', 'rate_limit_bans_until') AND rate_limit_policy_version() > 0
		AND obj_description('rate_limit_rules'::regclass) <> 'The rules.'`) == 2
}

// decideUntil decides requests with one key after the other until ctx ends. It counts them in decisions.
func decideUntil(ctx context.Context, t *testing.T, p *policy.Policy, decisions *atomic.Int64) {
	for ; ctx.Err() == nil; decisions.Add(1) {
		number := 1 + decisions.Load()%keyCount
		got, err := tryVerdictOf(p, fmt.Sprint("key-", number), "")
		if want := fmt.Sprintf("user-%d free rule/plan/per_hour=1000", number); err != nil || got != want {
			t.Errorf("got %q, %v, want %q", got, err, want)
			return
		}
	}
}

// A proxy upgrades the tables of an older version in place, and decides without interruption. While a
// transaction of another session prevents the upgrade, the proxy reads the old tables, and afterwards the new
// tables. Each request has an API key that is not cached, so that it needs the tables.
func TestUpgradeStopsNoDecision(t *testing.T) {
	d := newOlderTestDB(t)
	p := d.newPolicy(policy.Settings{MaxIdentities: 16})
	writer := d.begin()
	if _, err := writer.Exec(t.Context(),
		"UPDATE rate_limit_rules SET comment = 'not committed'; DELETE FROM rate_limit_bans"); err != nil {
		t.Fatal(err)
	}
	refresh(t, p)
	loading, stop := context.WithCancel(t.Context())
	var load sync.WaitGroup
	var decisions atomic.Int64
	load.Go(func() { decideUntil(loading, t, p, &decisions) })
	checkProgress := func() {
		t.Helper()
		before := decisions.Load()
		await.Within(t, time.Minute, "further decisions",
			func() bool { return decisions.Load() >= before+20 })
	}
	for range 3 {
		d.advance(time.Minute) // the next attempt is due
		refresh(t, p)
		checkProgress()
	}
	if d.isUpgraded() {
		t.Error("got upgraded tables while another session had locked them, want the old ones")
	}
	if err := writer.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	await.Within(t, time.Minute, "the upgrade", func() bool { // an autovacuum may hold a lock
		d.advance(time.Minute)
		refresh(t, p)
		return d.isUpgraded()
	})
	checkProgress()
	stop()
	load.Wait()
	if n := d.queryInt(`SELECT count(*) FROM rate_limit_rules WHERE (name, count_by) IN (('plan', '{user}'),
		('network', '{user|ip}'), ('both', '{ip/128,ip}'), ('address', '{ip}'))`); n != 4 {
		t.Errorf("%d of 4 rules count by what they counted by, in today's names", n)
	}
	if n := d.queryInt("SELECT count(*) FROM rate_limit_api_keys"); n != keyCount {
		t.Errorf("got %d API keys, want %d", n, keyCount)
	}
}
