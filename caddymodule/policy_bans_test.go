package caddymodule_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// After as many refusals as a zone allows its clients, the client is banned from everything,
// and each further ban lasts twice as long. Deleting the row lifts the ban.
func TestRefusalsLeadToABan(t *testing.T) {
	key, insert := insertKey(t, 9, "bob")
	dsn := withPolicy(t, people+insert)
	c := startPolicy(t, dsn, "zone PREFIX {\nmatch path /login\nkey {client_ip}{header.X-User}{header.Authorization}\nlimit 1 1h\nalgorithm fixed_window\nban 10m after 3 refusals in 1m\n}")
	for _, sender := range []struct{ header, value, ref string }{
		{"X-User", "alice", "user_id = 'alice'"}, {"Authorization", key, "key_id = 9"}, {"X-Nobody", "x", "network = '127.0.0.1/32'"},
	} {
		c.expect(http.StatusOK, "/login", sender.header, sender.value)
		for range 3 {
			c.expect(http.StatusTooManyRequests, "/login", sender.header, sender.value)
		}
		await.Within(t, 10*time.Second, "a ban", func() bool { return c.get("/", sender.header, sender.value).status == http.StatusForbidden })
		row := query[string](t, dsn, "SELECT concat(times, ' ', reason, ' ', banned_by LIKE '% (%/caddy)', ' ', until - banned_at) FROM rate_limit_bans WHERE "+sender.ref)
		if want := "1 3 refusals in 1m0s by " + c.prefix() + " t 00:10:00"; row != want {
			t.Errorf("%s: the row of the ban is %q, want %q", sender.ref, row, want)
		}
		a := c.expect(http.StatusForbidden, "/login", sender.header, sender.value)
		if retry := a.number(t, "Retry-After"); retry < 595 || retry > 600 {
			t.Errorf("%s: Retry-After %d, want about 600", sender.ref, retry)
		}
		cluster.Execute(t, dsn, "DELETE FROM rate_limit_bans WHERE "+sender.ref)
		await.Within(t, 10*time.Second, "the ban is lifted", func() bool { return c.get("/", sender.header, sender.value).status == http.StatusOK })
	}
}

// The second ban of a sender lasts twice as long as the first.
func TestTheNextBanIsLonger(t *testing.T) {
	dsn := withPolicy(t, people+`
		SELECT rate_limit_rule('trap', action => 'block', paths => '{/wp-admin/*}', ban_for => '1 h', ban_after => 2, ban_within => '1 min');
		SELECT rate_limit_rule('plan', per_hour => 100);`)
	c := startPolicy(t, dsn)
	for times, lasts := range []string{"01:00:00", "02:00:00"} {
		for range 2 {
			c.expect(http.StatusForbidden, "/wp-admin/x", "X-User", "alice")
		}
		await.Within(t, 10*time.Second, "a ban", func() bool { return c.get("/", "X-User", "alice").status == http.StatusForbidden })
		row := query[string](t, dsn, "SELECT concat(times, ' ', reason, ' ', until - banned_at) FROM rate_limit_bans WHERE user_id = 'alice'")
		if want := fmt.Sprintf("%d 2 refusals in 1m0s by rule/trap %s", times+1, lasts); row != want {
			t.Errorf("the row of the ban is %q, want %q", row, want)
		}
		cluster.Execute(t, dsn, "UPDATE rate_limit_bans SET until = now() - interval '1 s'")
		await.Within(t, 10*time.Second, "the end of the ban", func() bool { return c.get("/", "X-User", "alice").status == http.StatusOK })
	}
}

// A rule's refusals by its limits are counted once for each request, whichever of its limits
// refuses.
func TestRefusalsOfARuleAreCountedOnce(t *testing.T) {
	dsn := withPolicy(t, people+`
		SELECT rate_limit_rule('plan', algorithm => 'fixed_window', per_hour => 1, per_day => 1, ban_for => '1 h', ban_after => 3, ban_within => '1 min');`)
	c := startPolicy(t, dsn)
	c.expect(http.StatusOK, "/", "X-User", "alice")
	for i := range 2 {
		c.expect(http.StatusTooManyRequests, "/", "X-User", "alice")
		await.Within(t, 10*time.Second, "the refusal to be counted", func() bool {
			return query[int](t, dsn, "SELECT coalesce(sum(count), 0)::int FROM rate_limit_ephemeral WHERE prefix = 'ban/rule/plan' AND key = 'user/alice'") == i+1
		})
	}
	if n := query[int](t, dsn, "SELECT count(*)::int FROM rate_limit_bans"); n != 0 {
		t.Errorf("%d bans after 2 refusals, want none before the third", n)
	}
	c.expect(http.StatusTooManyRequests, "/", "X-User", "alice")
	await.Within(t, 10*time.Second, "a ban", func() bool { return c.get("/", "X-User", "alice").status == http.StatusForbidden })
}

// Two handlers with a policy on one path charge a request twice, which the log says.
func TestTwoPoliciesOnOnePathAreWarnedAbout(t *testing.T) {
	dsn := withPolicy(t, people)
	c := start(t, strings.ReplaceAll(`
		:PORT {
			route {
				pg_ratelimit {
					dsn DSN
					policy
				}
				pg_ratelimit {
					dsn DSN
					policy
				}
			}
		}`, "DSN", dsn))
	if n := len(c.lines("another handler on the same path has a policy: a request that reaches both is charged twice")); n != 1 {
		t.Errorf("%d warnings, want one", n)
	}
}

// The log says once that the authentication comes too late to tell the user.
func TestAnAuthenticationAfterThePolicyIsWarnedAbout(t *testing.T) {
	dsn := withPolicy(t, people)
	c := start(t, strings.ReplaceAll(`
		:PORT {
			pg_ratelimit {
				dsn DSN
				timeout 10s
				policy {
					user {http.auth.user.id}
				}
			}
		}`, "DSN", dsn))
	c.expect(http.StatusOK, "/")
	c.expect(http.StatusOK, "/")
	if n := len(c.lines("no authentication has run before this handler: put both into a route block, with pg_ratelimit after the authentication")); n != 1 {
		t.Errorf("%d warnings, want one", n)
	}
}
