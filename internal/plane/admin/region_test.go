package admin_test

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/regions"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/seed"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/slownet"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
)

var (
	regionChanges = flag.Int("region-changes", 200, "changes of the policy in TestRegionsAgreeAfterTheLinkWasCut, which the full size makes 10000")
	regionPace    = flag.Duration("region-pace", 12*time.Millisecond, "between two of them; 5,000 a minute are 12ms")
	regionCut     = flag.Duration("region-cut", time.Second, "for how long the link is cut; the full size is 1m")
)

// publisherAndRegion returns a publisher, and a server for a region, each with the tables.
func publisherAndRegion(t *testing.T) (home, eu *admin.Database, homeDSN, euDSN string) {
	t.Helper()
	open := func() (*admin.Database, string) {
		c := cluster.Private(t, cluster.Options{Config: map[string]string{"wal_level": "logical", "wal_retrieve_retry_interval": "200ms"},
			HBA: "local all all trust\nhost all,replication all 127.0.0.1/32 trust\n"})
		db, err := admin.Open(t.Context(), c.DSN("postgres"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(db.Close)
		if _, err := db.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		return db, c.DSN("postgres")
	}
	home, homeDSN = open()
	eu, euDSN = open()
	return home, eu, homeDSN, euDSN
}

// follow returns the policy as a proxy of a database has it.
func follow(t *testing.T, dsn string) *policy.Policy {
	t.Helper()
	db, err := pgxdb.Open(dsn, pgxdb.Options{MaxConns: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	p, err := policy.New(db, policy.Settings{Refresh: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	p.Prepare()
	return p
}

// tierOf is the tier of a user, as a proxy has it, or why the user is refused.
func tierOf(p *policy.Policy, user string) string {
	o := &policy.Verdict{}
	if err := p.Evaluate(context.Background(), 10*time.Second, "", user, &policy.Facts{Tier: "anonymous", Path: "/", Method: "GET"}, o); err != nil {
		return err.Error()
	}
	if o.Refused() {
		return o.Reason.String()
	}
	return o.Tier
}

// one returns what a query returns.
func one[T any](t *testing.T, db *admin.Database, sql string, args ...any) (found T) {
	t.Helper()
	if err := db.Conn().QueryRow(t.Context(), sql, args...).Scan(&found); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return found
}

func exec(t *testing.T, db *admin.Database, sql string) {
	t.Helper()
	if _, err := db.Conn().Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// contentsSQL is all that is replicated. A region has bans of its own.
const contentsSQL = `SELECT coalesce(md5(string_agg(r, E'\n' ORDER BY r)), '') FROM (SELECT x::text FROM rate_limit_tiers x UNION ALL SELECT x::text FROM rate_limit_users x
	UNION ALL SELECT x::text FROM rate_limit_api_keys x UNION ALL SELECT x::text FROM rate_limit_rules x UNION ALL SELECT x::text FROM rate_limit_rule_limits x
	UNION ALL SELECT x::text FROM rate_limit_overrides x UNION ALL SELECT x::text FROM rate_limit_bans x WHERE id > 0) AS all_rows(r)`

// agree waits until the region has what the publisher has, and no table is being copied: until then, a proxy that starts has no policy.
func agree(t *testing.T, home, eu *admin.Database, within time.Duration) {
	t.Helper()
	await.Within(t, within, "both sides agree", func() bool {
		return one[bool](t, eu, "SELECT "+schema.PolicyCopied) && one[string](t, home, contentsSQL) == one[string](t, eu, contentsSQL)
	})
}

func TestARegionHasThePolicyOfItsPublisher(t *testing.T) {
	ctx := t.Context()
	home, eu, homeDSN, euDSN := publisherAndRegion(t)
	exec(t, home, `INSERT INTO rate_limit_tiers (tier) VALUES ('free'), ('pro'); INSERT INTO rate_limit_users (user_id, tier) VALUES ('ann', 'free'), ('bob', 'free');
		INSERT INTO rate_limit_api_keys (id, digest, user_id) VALUES (1, decode(repeat('ab', 32), 'hex'), 'ann'); SELECT rate_limit_rule('plan', tiers => '{free}', per_hour => 10)`)
	exec(t, eu, "INSERT INTO rate_limit_tiers (tier) VALUES ('old'); INSERT INTO rate_limit_bans (user_id, reason) VALUES ('carol', 'from before')")
	subscribe(t, home, eu, homeDSN)
	agree(t, home, eu, 20*time.Second)
	p := follow(t, euDSN)
	for user, want := range map[string]string{"ann": "free", "bob": "free", "carol": "banned"} {
		if got := tierOf(p, user); got != want {
			t.Errorf("%s: %s, want %s", user, got, want)
		}
	}
	// Changes hold in the region within a second.
	for _, change := range []struct{ sql, user, want string }{
		{"UPDATE rate_limit_users SET tier = 'pro' WHERE user_id = 'ann'", "ann", "pro"},
		{"INSERT INTO rate_limit_bans (user_id) VALUES ('ann')", "ann", "banned"},
		{"DELETE FROM rate_limit_bans WHERE user_id = 'ann'", "ann", "pro"},
		{"UPDATE rate_limit_tiers SET tier = 'gold' WHERE tier = 'pro'", "ann", "gold"},
		{"INSERT INTO rate_limit_users (user_id, tier) SELECT 'u' || i, 'free' FROM generate_series(1, 5000) i", "u5000", "free"},
		{"UPDATE rate_limit_users SET tier = 'gold' WHERE user_id LIKE 'u%'", "u5000", "gold"},
	} {
		exec(t, home, change.sql)
		begun := time.Now()
		await.Within(t, time.Minute, change.sql, func() bool { return tierOf(p, change.user) == change.want })
		t.Logf("%s after %s: %s", change.want, time.Since(begun).Round(time.Millisecond), change.sql)
	}
	if n := one[int](t, eu, "SELECT count(*) FROM rate_limit_changes WHERE by LIKE '% (replication)' AND kind = 'user' AND at > now() - interval '1 h'"); n > 2200 {
		t.Errorf("%d lines about 10,000 changed users", n)
	}
	// All but bans of its own is read-only.
	_, err := eu.SetRule(ctx, "plan", []string{"per_hour=3"}, false)
	for what, err := range map[string]error{"a rule": err, "a tier": execError(ctx, eu, "DELETE FROM rate_limit_tiers"), "a truncation": execError(ctx, eu, "TRUNCATE rate_limit_rules CASCADE")} {
		if err == nil || !strings.Contains(err.Error(), `this database is the region "eu", and its policy is a copy: change it at the publisher`) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// Bans of a region stay there. Equal ones of the publisher replace them.
	exec(t, eu, "SELECT rate_limit_ban(interval '1 h', user_id => 'bob'); SELECT rate_limit_ban(interval '1 h', key_id => 1); SELECT rate_limit_ban(interval '1 h', network => '192.0.2.0/24')")
	await.Within(t, time.Minute, "the ban of the region", func() bool { return tierOf(p, "bob") == "banned" })
	if n := one[int](t, home, "SELECT count(*) FROM rate_limit_bans"); n != 0 {
		t.Errorf("%d bans at the publisher", n)
	}
	exec(t, home, "INSERT INTO rate_limit_bans (user_id, reason) VALUES ('bob', 'for all'); INSERT INTO rate_limit_bans (network, reason) VALUES ('198.51.100.0/24', 'x')")
	agree(t, home, eu, 20*time.Second)
	exec(t, home, "UPDATE rate_limit_bans SET network = '192.0.2.0/24' WHERE reason = 'x'")
	exec(t, home, "DELETE FROM rate_limit_api_keys")
	agree(t, home, eu, 20*time.Second)
	if got := one[string](t, eu, "SELECT string_agg(coalesce(user_id, network::text) || ' ' || coalesce(reason, '') || (id < 0)::text, ', ' ORDER BY reason) FROM rate_limit_bans"); got != "bob for allfalse, carol from beforetrue, 192.0.2.0/24 xfalse" {
		t.Errorf("the bans of the region: %s", got)
	}
	if err := execError(ctx, eu, "DELETE FROM rate_limit_bans WHERE user_id = 'bob'"); err == nil {
		t.Error("a region lifts a ban of the publisher")
	}
	exec(t, eu, "DELETE FROM rate_limit_bans WHERE user_id = 'carol'")
	// The migration of a later version makes the triggers anew.
	exec(t, eu, "CREATE OR REPLACE FUNCTION rate_limit_policy_version() RETURNS int LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT 0'")
	if m, err := eu.Migrate(ctx); err != nil || m.Policy != "upgraded" {
		t.Errorf("Migrate: %+v, %v", m, err)
	}
	exec(t, home, "TRUNCATE rate_limit_users CASCADE")
	await.Within(t, time.Minute, "the truncation", func() bool { return tierOf(p, "u7") == "anonymous" })
	all, err := eu.Replications(ctx)
	if err != nil || len(all) != 1 || all[0].Text("role") != "region" || all[0].Text("state") != "streaming" || all[0].Get("errors") != int64(0) || all[0].Get("silent_seconds").(float64) > 60 {
		t.Errorf("the replication of the region: %+v, %v", all, err)
	}
	if all, err = home.Replications(ctx); err != nil || len(all) != 1 || all[0].Text("role") != "publisher" || all[0].Text("subscription") != "rate_limit_policy_eu" || all[0].Text("state") != "streaming" {
		t.Errorf("the replication of the publisher: %+v, %v", all, err)
	}
	await.Within(t, time.Minute, "the region in the stats", func() bool { r := p.Stats().Replication; return r.Region == "eu" && r.Streams() })
	exec(t, eu, "ALTER SUBSCRIPTION rate_limit_policy_eu DISABLE")
	await.Within(t, time.Minute, "the end of the replication in the stats", func() bool { r := p.Stats().Replication; return r.State == "disabled" && !r.Streams() })
	// It becomes a policy that is changed here.
	exec(t, eu, "SELECT rate_limit_make_region(NULL)")
	exec(t, eu, "INSERT INTO rate_limit_bans (user_id) VALUES ('dan'); INSERT INTO rate_limit_users (user_id, tier) VALUES ('dan', 'gold')")
	if n := one[int](t, eu, "SELECT count(*) FROM rate_limit_bans WHERE id < 0"); n != 0 {
		t.Errorf("%d bans have ids below 0", n)
	}
}

// subscribe makes one database a region of the other.
func subscribe(t *testing.T, home, eu *admin.Database, dsn string) {
	t.Helper()
	if err := regions.Publish(t.Context(), home.Conn()); err != nil {
		t.Fatal(err)
	}
	if err := regions.Subscribe(t.Context(), eu.Conn(), dsn, false); err != nil {
		t.Fatal(err)
	}
}

func execError(ctx context.Context, db *admin.Database, sql string) error {
	_, err := db.Conn().Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol)
	return err
}

// Changes go on while the link is cut, both sides ban the same senders, and the region is rebuilt from nothing under the
// changes. A proxy of the region then knows what one knows that reads everything anew.
func TestRegionsAgreeAfterTheLinkWasCut(t *testing.T) {
	const users = 50
	home, eu, homeDSN, euDSN := publisherAndRegion(t)
	link, through := slownet.ListenFor(t, homeDSN, 20*time.Millisecond)
	exec(t, home, `INSERT INTO rate_limit_tiers (tier) SELECT 't' || i FROM generate_series(0, 9) i; INSERT INTO rate_limit_users (user_id, tier) SELECT 'u' || i, 't0' FROM generate_series(0, 49) i;
		INSERT INTO rate_limit_api_keys (id, digest, user_id) VALUES (1, decode(repeat('ab', 32), 'hex'), 'u0')`)
	subscribe(t, home, eu, through)
	agree(t, home, eu, 20*time.Second)
	p := follow(t, euDSN)
	var errs sync.Map
	p.Prepare()
	for i := range users {
		tierOf(p, fmt.Sprint("u", i)) // it is remembered now, and must be forgotten at each change
	}
	random := seed.New(t)
	change := func(db *side, n int) {
		for i := range n {
			user := fmt.Sprint("u", random.IntN(users))
			var sql string
			switch k := random.IntN(10); {
			case db.region && k < 5:
				sql = fmt.Sprintf("DELETE FROM rate_limit_bans WHERE id < 0 AND user_id = '%s'", user)
			case db.region:
				sql = fmt.Sprintf("SELECT rate_limit_ban(interval '1 h', user_id => '%s')", user)
			case k == 0:
				sql = fmt.Sprintf("SELECT rate_limit_ban(interval '1 h', user_id => '%s')", user)
			case k == 1:
				sql = fmt.Sprintf("DELETE FROM rate_limit_bans WHERE user_id = '%s'", user)
			case k == 2:
				sql = fmt.Sprintf("SELECT rate_limit_rule('r%d', tiers => '{t%d}', per_hour => %d)", random.IntN(5), random.IntN(10), i+1)
			default:
				sql = fmt.Sprintf("UPDATE rate_limit_users SET tier = 't%d' WHERE user_id = '%s'", random.IntN(10), user)
			}
			if _, err := db.conn.Exec(context.Background(), sql); err != nil {
				errs.Store(err.Error(), sql)
			}
			time.Sleep(*regionPace) // the rate of the changes
		}
	}
	atHome := &side{conn: cluster.Connect(t, homeDSN)}
	inRegion := &side{conn: cluster.Connect(t, euDSN), region: true}
	half := func() {
		var both sync.WaitGroup
		both.Go(func() { change(atHome, *regionChanges/2) })
		both.Go(func() { change(inRegion, *regionChanges/8) })
		both.Go(func() {
			time.Sleep(time.Duration(*regionChanges/8) * *regionPace)
			link.SetDown(true)
			time.Sleep(*regionCut)
			link.SetDown(false)
		})
		both.Wait()
	}
	known := func(when string) {
		t.Helper()
		agree(t, home, eu, time.Minute)
		fresh := follow(t, euDSN)
		for i := range users {
			user := fmt.Sprint("u", i)
			want := tierOf(fresh, user)
			await.Within(t, time.Minute, when+", "+user+": "+want, func() bool { return tierOf(p, user) == want })
		}
	}
	half()
	known("after the cut")
	exec(t, eu, "SELECT rate_limit_ban(interval '1 h', key_id => 1)")
	// Rebuilt from nothing, while changes go on.
	var rebuilt sync.WaitGroup
	rebuilt.Go(func() {
		if err := regions.Subscribe(context.Background(), eu.Conn(), through, true); err != nil {
			t.Error(err)
		}
	})
	change(atHome, *regionChanges/2)
	rebuilt.Wait()
	known("after it was rebuilt")
	if n := one[int](t, eu, "SELECT count(*) FROM rate_limit_bans WHERE key_id = 1 AND id < 0 AND rate_limit_forget() >= 0"); n != 1 {
		t.Errorf("%d bans of the region's own after it was rebuilt", n)
	}
	if one[int](t, eu, "SELECT count(*) FROM rate_limit_bans WHERE id < 0 AND EXISTS (SELECT FROM rate_limit_bans o WHERE o.id > 0 AND o.user_id = rate_limit_bans.user_id)") != 0 {
		t.Error("a sender is banned twice")
	}
	errs.Range(func(err, sql any) bool { t.Errorf("%s: %s", sql, err); return true })
}

type side struct {
	conn   *pgx.Conn
	region bool
}
