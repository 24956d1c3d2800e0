package integration

import (
	"net/http"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// TestThePolicyHoldsLocally: without a database, keys, users, bans and blocks that a proxy knows hold, limits have
// the share of the proxy, and unknown keys count by address.
func TestThePolicyHoldsLocally(t *testing.T) {
	t.Parallel()
	server := cluster.Private(t, cluster.Options{})
	dsn := server.DSN("postgres")
	alice, insertAlice := newKey(t, 1, "alice")
	bob, insertBob := newKey(t, 2, "bob")
	carol, insertCarol := newKey(t, 3, "carol")
	mallory, insertMallory := newKey(t, 4, "mallory")
	execute(t, dsn, schema.File)
	execute(t, dsn, `INSERT INTO rate_limit_tiers (tier) VALUES ('free') ON CONFLICT DO NOTHING;
		INSERT INTO rate_limit_users (user_id, tier) VALUES ('alice', 'free'), ('bob', 'free'), ('carol', 'free'), ('mallory', 'free');`+
		insertAlice+insertBob+insertCarol+insertMallory+`
		INSERT INTO rate_limit_bans (user_id, reason) VALUES ('mallory', 'a test');
		SELECT rate_limit_rule('plan', tiers => '{free}', algorithm => 'fixed_window', per_hour => 33);
		SELECT rate_limit_rule('strangers', tiers => '{anonymous}', count_by => '{ip}', algorithm => 'fixed_window', per_hour => 6);
		SELECT rate_limit_rule('closed', action => 'block', paths => '{/closed}');
		SELECT rate_limit_rule('members', action => 'block', tiers => '{anonymous}', paths => '{/members}');`)
	proxies := startGoverned(t, dsn, []string{"timeout 5s", "on_error local"}, object{"timeout": "5s", "onError": "local"})
	awaitObeyed(t, dsn, len(proxies))
	registered := time.Now()
	await(t, "all proxies to know of the others", func() bool {
		return queryInt(t, dsn, "SELECT count(*) FROM rate_limit_nodes WHERE seen > '"+registered.Format(time.RFC3339Nano)+"'") == 3
	})
	ask := func(p proxy, path, key string) int {
		return harness.Ask(t, harness.Get(p.url+path, "Authorization", "Bearer "+key)).Status
	}
	for _, p := range proxies {
		if got := ask(p, "/", alice); got != http.StatusOK {
			t.Fatalf("%s: %d", p.url, got)
		}
		ask(p, "/", mallory)
	}
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	for _, p := range proxies {
		passed := 0
		for range 20 {
			switch got := ask(p, "/", alice); got {
			case http.StatusOK:
				passed++
			case http.StatusTooManyRequests:
			default:
				t.Errorf("%s: a known key is answered %d", p.url, got)
			}
		}
		if passed != 10 {
			t.Errorf("%s: %d requests of a known key pass, want 10: 11 less the one before the outage", p.url, passed)
		}
		for _, c := range []struct {
			path, key string
			want      int
		}{
			{"/", mallory, http.StatusForbidden},
			{"/closed", alice, http.StatusForbidden},
			{"/closed", bob, http.StatusForbidden},
			{"/", bob, http.StatusOK},
			{"/", carol, http.StatusOK},
			{"/", bob, http.StatusTooManyRequests},
			{"/", carol, http.StatusTooManyRequests},
			{"/members", bob, http.StatusOK}, // it may be a member
			{"/", "prl_invented", http.StatusUnauthorized},
		} {
			if got := ask(p, c.path, c.key); got != c.want {
				t.Errorf("%s%s with the key %.8s: %d, want %d", p.url, c.path, c.key, got, c.want)
			}
		}
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, p := range proxies {
		await(t, "the policy to know all keys", func() bool { return ask(p, "/", bob) == http.StatusOK })
	}
}
