package caddymodule_test

import (
	"encoding/hex"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// withPolicy returns a database that has the tables of the policy, and rows of sql.
func withPolicy(t *testing.T, sql string) (dsn string) {
	t.Helper()
	dsn = cluster.Open(t, schema.Counters+schema.Policy)
	cluster.Execute(t, dsn, sql)
	return dsn
}

// insertKey returns a new API key, and SQL that gives it to a user.
func insertKey(t *testing.T, id int, user string) (key, sql string) {
	t.Helper()
	key, err := policy.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	digest := policy.Digest(key)
	return key, fmt.Sprintf(
		"INSERT INTO rate_limit_api_keys (id, digest, user_id) VALUES (%d, '\\x%s', '%s');", id,
		hex.EncodeToString(digest[:]), user)
}

const people = `
	INSERT INTO rate_limit_tiers (tier) VALUES ('free'), ('pro');
	INSERT INTO rate_limit_users (user_id, tier) VALUES ('alice', 'free'), ('bob', 'pro');`

// policySite is a site with a policy alone, which shows the placeholders.
const policySite = `
	:PORT {
		pg_ratelimit {
			dsn DSN
			timeout 10s
			on_error deny
			policy {
				api_key {header.Authorization}
				user {header.X-User}
				unknown_key reject
			}
			LIMITS
		}
		respond "{http.pg_ratelimit.user}|{http.pg_ratelimit.tier}|` +
	`{http.pg_ratelimit.key_id}|{http.pg_ratelimit.rule}"
	}`

func startPolicy(t *testing.T, dsn string, limits ...string) *live {
	t.Helper()
	return start(t, strings.NewReplacer("DSN", dsn, "LIMITS", strings.Join(limits, "\n")).Replace(policySite))
}

func TestAPolicySaysWhoARequestIs(t *testing.T) {
	key, insert := insertKey(t, 7, "alice")
	dsn := withPolicy(t, people+insert+`
		SELECT rate_limit_rule('plan', tiers => '{free}', per_hour => 5);
		SELECT rate_limit_rule('visitors', tiers => '{anonymous}', per_hour => 3, priority => 50);`)
	c := startPolicy(t, dsn)
	for _, step := range []struct {
		headers []string
		body    string
		limit   int64
		left    int64
	}{
		{[]string{"Authorization", "Bearer " + key}, "alice|free|7|plan", 5, 4},
		{[]string{"Authorization", key}, "alice|free|7|plan", 5, 3},
		{[]string{"X-User", "alice"}, "alice|free||plan", 5, 2},
		{[]string{"X-User", "carol"}, "carol|anonymous||visitors", 3, 2},
		{nil, "|anonymous||visitors", 3, 2},
	} {
		a := c.expect(http.StatusOK, "/", step.headers...)
		if a.Body != step.body || a.number(t, "X-RateLimit-Limit") != step.limit ||
			a.number(t, "X-RateLimit-Remaining") != step.left {
			t.Errorf("%v: %s, %v; want %+v", step.headers, a.Body, a.Header, step)
		}
	}
	a := c.expect(http.StatusOK, "/", "X-User", "bob")
	if a.Body != "bob|pro||" || a.Header.Get("X-RateLimit-Limit") != "" {
		t.Errorf("without a rule: %s, %v", a.Body, a.Header)
	}
	checkMetrics(t, map[string]float64{
		"policy_requests_total charged": 5, "policy_requests_total free": 1,
		"policy_decisions_total per_hour allowed plan": 3,
		"policy_rules": 2, "policy_wrong_rules": 0, "policy_identities": 4,
	})
	if strings.Contains(c.logged(), key) {
		t.Error("the log has the API key")
	}
}

func TestAnInvalidKeyIsRefused(t *testing.T) {
	valid, insert := insertKey(t, 1, "alice")
	expired, insertExpired := insertKey(t, 2, "alice")
	revoked, insertRevoked := insertKey(t, 3, "alice")
	unknown, _ := insertKey(t, 4, "alice")
	dsn := withPolicy(t, people+insert+insertExpired+insertRevoked+`
		UPDATE rate_limit_api_keys SET expires_at = now() - interval '1 s' WHERE id = 2;
		UPDATE rate_limit_api_keys SET revoked_at = now() WHERE id = 3;`)
	c := startPolicy(t, dsn)
	c.expect(http.StatusOK, "/", "Authorization", valid)
	for key, body := range map[string]string{
		expired: `{"error":"Expired API key"}`, revoked: `{"error":"Revoked API key"}`,
		unknown:        `{"error":"Unknown API key"}`,
		"prl_nonsense": `{"error":"Unknown API key"}`, "made elsewhere": `{"error":"Unknown API key"}`,
	} {
		a := c.expect(http.StatusUnauthorized, "/", "Authorization", key)
		if a.Body != body || a.Header.Get("WWW-Authenticate") != `Bearer error="invalid_token"` ||
			a.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s, %v; want %s", a.Body, a.Header, body)
		}
	}
	if lines := c.lines("request refused by the policy"); len(lines) != 5 || lines[0]["reason"] == "" {
		t.Errorf("refusals in the log: %v", lines)
	}
	c.load(strings.NewReplacer("DSN", dsn, "LIMITS", "", "unknown_key reject", "unknown_key anonymous").
		Replace(policySite))
	if a := c.expect(http.StatusOK, "/", "Authorization", unknown); a.Body != "|anonymous||" {
		t.Errorf("with unknown_key anonymous: %s", a.Body)
	}
}

// The limits of rules and the zones of the configuration are charged together or not at all.
func TestAPolicyAndZonesAreAllOrNothing(t *testing.T) {
	dsn := withPolicy(t, people+`SELECT rate_limit_rule('plan', tiers => '{free}',
		algorithm => 'fixed_window', per_hour => 10);
		SELECT rate_limit_rule('shadow', mode => 'shadow', algorithm => 'fixed_window', per_hour => 2);`)
	c := startPolicy(t, dsn, "zone PREFIX {\nkey all\nlimit 4 1h\nalgorithm fixed_window\n}")
	for i := range 6 {
		a := c.get("/", "X-User", "alice")
		if want := i < 4; (a.Status == http.StatusOK) != want {
			t.Errorf("request %d: %d", i, a.Status)
		}
		if a.number(t, "X-RateLimit-Limit") != 4 {
			t.Errorf("request %d: %v", i, a.Header)
		}
	}
	for prefix, want := range map[string]int{"rule/plan/per_hour": 4, "rule/shadow/per_hour": 2,
		c.prefix(): 4} {
		if n := cluster.Query[int](t, dsn,
			"SELECT coalesce(sum(count), 0)::int FROM rate_limit_ephemeral WHERE prefix = $1",
			prefix); n != want {
			t.Errorf("%s was charged %d, want %d", prefix, n, want)
		}
	}
	if len(c.lines("a shadow rule would have refused")) != 4 {
		t.Errorf("the log has %d refusals in the shadow, want 4",
			len(c.lines("a shadow rule would have refused")))
	}
	checkMetrics(t, map[string]float64{
		"policy_decisions_total per_hour allowed plan":       4,
		"policy_decisions_total per_hour would_allow shadow": 2,
		"policy_decisions_total per_hour would_deny shadow":  4, "decisions_total denied " + c.prefix(): 2,
	})
}

// Error routes respond to refusals of the policy as to those of limits.
func TestErrorRoutesRespondToThePolicy(t *testing.T) {
	dsn := withPolicy(t, people+`SELECT rate_limit_rule('closed', action => 'block', paths => '{/closed}',
		message => 'No entry');
		INSERT INTO rate_limit_bans (user_id) VALUES ('mallory');`)
	c := start(t, strings.ReplaceAll(`
		:PORT {
			pg_ratelimit {
				dsn DSN
				timeout 10s
				policy {
					api_key {header.X-Api-Key}
					user {header.X-User}
				}
			}
			handle_errors 401 403 {
				respond "{err.status_code} {err.message} {http.pg_ratelimit.reason} `+
		`{http.pg_ratelimit.rule} {http.pg_ratelimit.prefix}." 418
			}
		}`, "DSN", dsn))
	for _, want := range []struct{ path, header, value, body string }{
		{"/", "X-Api-Key", "nobody's", "401 Unknown API key unknown_key  ."},
		{"/", "X-User", "mallory", "403 Banned banned  ."},
		{"/closed", "X-User", "alice", "403 No entry blocked closed ."},
	} {
		if a := c.expect(http.StatusTeapot, want.path, want.header, want.value); a.Body != want.body {
			t.Errorf("%q, want %q", a.Body, want.body)
		}
	}
}
