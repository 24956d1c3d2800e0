package caddymodule_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

const outageSites = `
	http://deny.test:PORT {
		pg_ratelimit {
			dsn DSN
			on_error deny
			timeout 5s
			POLICY
		}
		respond "{http.pg_ratelimit.user}"
	}
	http://allow.test:PORT {
		pg_ratelimit {
			dsn DSN
			timeout 5s
			POLICY
		}
		respond "{http.pg_ratelimit.user}"
	}`

// While the database is down, rules and known keys stay valid, and a key that is not known
// follows on_error. A config that is loaded then, with another policy, has no rules.
func TestAPolicyWithoutItsDatabase(t *testing.T) {
	server := cluster.Private(t, cluster.Options{})
	dsn := server.DSN("postgres")
	cluster.Execute(t, dsn, schema.Counters+schema.Policy)
	known, insert := insertKey(t, 1, "alice")
	other, insertOther := insertKey(t, 2, "bob")
	cluster.Execute(t, dsn, people+insert+insertOther+`
		SELECT rate_limit_rule('closed', action => 'block', paths => '{/closed}');
		SELECT rate_limit_rule('counted', paths => '{/counted}', per_hour => 10);
		SELECT rate_limit_rule('open', action => 'exempt', paths => '{/open}');`)
	sites := strings.NewReplacer("DSN", dsn, "POLICY", "policy {\napi_key {header.X-Api-Key}\n}").
		Replace(outageSites)
	c := start(t, sites)
	c.expect(http.StatusOK, "/open", "Host", "deny.test", "X-Api-Key", known)
	c.expect(http.StatusForbidden, "/closed", "Host", "deny.test", "X-Api-Key", known)
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	await.Within(t, time.Minute, "the outage is noticed",
		func() bool { return measured(t)["policy_age_seconds"] > 0.5 })
	c.expect(http.StatusServiceUnavailable, "/open", "Host", "deny.test", "X-Api-Key", other)
	c.expect(http.StatusOK, "/open", "Host", "allow.test", "X-Api-Key", other)
	c.expect(http.StatusOK, "/open", "Host", "deny.test")
	c.expect(http.StatusForbidden, "/closed", "Host", "deny.test")
	c.expect(http.StatusForbidden, "/closed", "Host", "allow.test")
	if a := c.expect(http.StatusOK, "/open", "Host", "deny.test", "X-Api-Key", known); a.Body != "alice" {
		t.Errorf("a known key is of %q", a.Body)
	}
	c.expect(http.StatusServiceUnavailable, "/counted", "Host", "deny.test", "X-Api-Key", known)
	c.expect(http.StatusOK, "/counted", "Host", "allow.test", "X-Api-Key", known)
	checkMetrics(t, map[string]float64{
		"policy_requests_total error_refused": 1, "policy_requests_total error_passed": 1,
		"policy_decisions_total per_hour error_refused counted":          1,
		"policy_decisions_total per_hour error_passed counted from none": 1,
	})
	// With another setting of its database, the policy is a new one, as after a restart.
	c.load("{\npg_ratelimit {\nmax_conns 3\n}\n}\n" + sites)
	c.expect(http.StatusServiceUnavailable, "/closed", "Host", "deny.test")
	c.expect(http.StatusOK, "/closed", "Host", "allow.test")
	if err := server.Restart(context.Background()); err != nil {
		t.Fatal(err)
	}
	await.Within(t, time.Minute, "the other key is known", func() bool {
		return c.get("/open", "Host", "deny.test", "X-Api-Key", other).Status == http.StatusOK
	})
}
