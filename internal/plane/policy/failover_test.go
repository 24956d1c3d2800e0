package policy_test

import (
	"context"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// One transaction drops the tables and creates them with other rows, as the restore of a dump does. The new
// log of changes does not mention the old rows.
func TestTablesThatAreMadeAgain(t *testing.T) {
	s := newSite(t)
	s.user("ann", "free")
	s.exec("SELECT rate_limit_rule('plan', per_hour => 10)")
	p := s.policy(policy.Settings{})
	refresh(t, p)
	same(t, "before", decided(t, p, "key of ann", ""), "ann free rule/plan/per_hour=10")
	s.exec("BEGIN; DROP TABLE rate_limit_tiers, rate_limit_users, rate_limit_api_keys, rate_limit_rules, " +
		"rate_limit_rule_limits, rate_limit_overrides, rate_limit_bans, rate_limit_changes, " +
		"rate_limit_nodes CASCADE;" +
		schema.Nodes + schema.Policy + "; SELECT rate_limit_rule('other', per_hour => 20); COMMIT")
	refresh(t, p)
	same(t, "a key that is gone", decided(t, p, "key of ann", ""), " anonymous 401 unknown_key")
	same(t, "a user that is gone", decided(t, p, "", "ann"), "ann anonymous rule/other/per_hour=20")
	same(t, "what was reported", s.reports(), "")
}

// The primary fails with its latest changes, and a replica takes over. A change that was applied and lost has
// no effect any longer, and the next change is applied.
func TestAReplicaIsPromoted(t *testing.T) {
	cluster.Tool(t, "pg_basebackup")
	replicating := cluster.Options{Config: map[string]string{"wal_level": "replica",
		"synchronous_commit": "local"},
		HBA: "local all all trust\nhost all,replication all 127.0.0.1/32 trust\n"}
	primary, second := cluster.Private(t, replicating), cluster.Private(t, replicating)
	s := siteOn(t, primary.DSN("postgres"))
	ctx := context.Background()
	m := &middle{db: s.db()}
	p := s.policyOn(m, policy.Settings{})
	refresh(t, p)
	s.exec("INSERT INTO rate_limit_tiers (tier) VALUES ('free'), ('pro'), ('gold')")
	s.user("ann", "free")
	if err := second.Follow(ctx, primary); err != nil {
		t.Fatal(err)
	}
	r := siteOn(t, second.DSN("postgres"))
	var seen int64
	await.Within(t, time.Minute, "the replica", func() bool {
		return r.pool.QueryRow(ctx, "SELECT count(*) FROM rate_limit_users").Scan(&seen) == nil && seen == 1
	})
	refresh(t, p)
	same(t, "at first", decided(t, p, "key of ann", ""), "ann free")

	standby := s.policyOn(r.db(), policy.Settings{})
	if err := standby.Refresh(ctx); err == nil {
		t.Error("a poll of a standby: got no error, want one")
	}

	// The replica loses the connection. The next changes are on the primary alone.
	r.exec("ALTER SYSTEM SET primary_conninfo = ''")
	r.exec("SELECT pg_reload_conf()")
	await.Within(t, time.Minute, "the end of the replication",
		func() bool { return s.number("SELECT count(*) FROM pg_stat_replication") == 0 })
	for range 50 { // so that the numbers of transactions are behind on the replica
		s.exec("UPDATE rate_limit_users SET tier = 'gold'")
		s.exec("UPDATE rate_limit_users SET tier = 'pro'")
	}
	refresh(t, p)
	same(t, "the change that will be lost", decided(t, p, "key of ann", ""), "ann pro")

	s.pool.Close()
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	if r.number("SELECT pg_promote()::int") != 1 {
		t.Fatal("the replica is not promoted")
	}
	m.set(func() { m.db = r.db() })
	refresh(t, p)
	same(t, "after the failover", decided(t, p, "key of ann", ""), "ann free")
	r.exec("UPDATE rate_limit_users SET tier = 'gold'")
	refresh(t, p)
	same(t, "after the next change", decided(t, p, "key of ann", ""), "ann gold")
}
