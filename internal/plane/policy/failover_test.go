package policy_test

import (
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// If the primary fails before it has replicated its latest changes, a proxy undoes these changes after the
// failover to the replica. It applies the changes that are made on the replica later.
func TestPromotedReplicaEndsUnreplicatedChanges(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all runs it: it starts two servers")
	}
	cluster.Tool(t, "pg_basebackup")
	replicating := cluster.Options{Config: map[string]string{"wal_level": "replica",
		"synchronous_commit": "local"},
		HBA: "local all all trust\nhost all,replication all 127.0.0.1/32 trust\n"}
	primary, second := cluster.Private(t, replicating), cluster.Private(t, replicating)
	d := openTestDB(t, primary.DSN("postgres"))
	ctx := t.Context()
	m := &controlledDB{db: d.openDB()}
	p := d.newPolicyOn(m, policy.Settings{})
	refresh(t, p)
	d.exec("INSERT INTO rate_limit_tiers (tier) VALUES ('free'), ('pro'), ('gold')")
	d.addUser("ann", "free")
	if err := second.Follow(ctx, primary); err != nil {
		t.Fatal(err)
	}
	r := openTestDB(t, second.DSN("postgres"))
	var seen int64
	await.Within(t, time.Minute, "the replica", func() bool {
		return r.pool.QueryRow(ctx, "SELECT count(*) FROM rate_limit_users").Scan(&seen) == nil && seen == 1
	})
	refresh(t, p)
	checkAnn(t, p, "at first", "ann free")

	standby := d.newPolicyOn(r.openDB(), policy.Settings{})
	if err := standby.Refresh(ctx); err == nil {
		t.Error("a poll of a standby: got no error, want one")
	}

	// The replica loses its connection, so the next changes are only on the primary.
	r.exec("ALTER SYSTEM SET primary_conninfo = ''")
	r.exec("SELECT pg_reload_conf()")
	await.Within(t, time.Minute, "the end of the replication",
		func() bool { return d.queryInt("SELECT count(*) FROM pg_stat_replication") == 0 })
	for range 50 { // so that transaction numbers lag behind on the replica
		d.exec("UPDATE rate_limit_users SET tier = 'gold'")
		d.exec("UPDATE rate_limit_users SET tier = 'pro'")
	}
	refresh(t, p)
	checkAnn(t, p, "the change that will be lost", "ann pro")

	d.pool.Close()
	if err := primary.Kill(); err != nil {
		t.Fatal(err)
	}
	if r.queryInt("SELECT pg_promote()::int") != 1 {
		t.Fatal("the replica was not promoted")
	}
	m.set(func() { m.db = r.openDB() })
	refresh(t, p)
	checkAnn(t, p, "after the failover", "ann free")
	r.exec("UPDATE rate_limit_users SET tier = 'gold'")
	refresh(t, p)
	checkAnn(t, p, "after the next change", "ann gold")
}
