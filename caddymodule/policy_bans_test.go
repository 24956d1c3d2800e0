package caddymodule_test

import (
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
		began := time.Now()
		c.expect(http.StatusOK, "/login", sender.header, sender.value)
		for range 3 {
			c.expect(http.StatusTooManyRequests, "/login", sender.header, sender.value)
		}
		await.Within(t, time.Minute, "a ban", func() bool { return c.get("/", sender.header, sender.value).Status == http.StatusForbidden })
		row := cluster.Query[string](t, dsn, "SELECT concat(times, ' ', reason, ' ', banned_by LIKE '% (%/caddy)', ' ', until - banned_at) FROM rate_limit_bans WHERE "+sender.ref)
		if want := "1 3 refusals in 1m0s by " + c.prefix() + " t 00:10:00"; row != want {
			t.Errorf("%s: the row of the ban is %q, want %q", sender.ref, row, want)
		}
		a := c.expect(http.StatusForbidden, "/login", sender.header, sender.value)
		if retry := a.number(t, "Retry-After"); retry > 600 || time.Duration(retry+5)*time.Second < 10*time.Minute-time.Since(began) {
			t.Errorf("%s: Retry-After %d, want about 600", sender.ref, retry)
		}
		cluster.Execute(t, dsn, "DELETE FROM rate_limit_bans WHERE "+sender.ref)
		await.Within(t, time.Minute, "the ban is lifted", func() bool { return c.get("/", sender.header, sender.value).Status == http.StatusOK })
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
