package caddymodule_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/caddymodule"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// token is a secret, of which the history has a digest.
const token = "hunter2"

// recorded writes what is pending, and returns the rows of a query with one column of text. PREFIX and DIGEST stand for the
// prefix of the test and the digest of token.
func (c *live) recorded(dsn, sql string) []string {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := caddymodule.FlushHistories(ctx); err != nil {
		c.t.Fatal(err)
	}
	rows := cluster.Query[[]string](c.t, dsn, "SELECT coalesce(array_agg(x), '{}') FROM ("+sql+") AS found(x)")
	names := strings.NewReplacer(ratelimit.DigestKey(token), "DIGEST", c.prefix(), "PREFIX")
	for i := range rows {
		rows[i] = names.Replace(rows[i])
	}
	return rows
}

// checkRows compares lists of rows.
func checkRows(t *testing.T, what string, got, want []string) {
	t.Helper()
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("%s:\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// secrets complains if a text is in a table of the history, or in the log.
func (c *live) secrets(dsn string, texts ...string) {
	c.t.Helper()
	for _, table := range []string{"rate_limit_audit", "rate_limit_metrics", "rate_limit_usage", "rate_limit_writers", "rate_limit_retention"} {
		for _, text := range texts {
			if n := cluster.Query[int](c.t, dsn, "SELECT count(*) FROM "+table+" AS x WHERE x::text LIKE '%' || $1 || '%'", text); n > 0 {
				c.t.Errorf("%d rows of %s have a secret", n, table)
			}
		}
	}
	for _, text := range texts {
		if strings.Contains(c.logged(), text) {
			c.t.Errorf("the log has %s", text)
		}
	}
}

// historySites has handlers without a policy.
const historySites = `
	{
		pg_ratelimit {
			dsn DSN
			history {
				audit_address prefix
			}
		}
		order pg_ratelimit after basic_auth
	}
	:PORT {
		pg_ratelimit /default PREFIX_default {
			limit 1 1h
			timeout 10s
		}
		pg_ratelimit /off PREFIX_off {
			limit 1 1h
			timeout 10s
			audit off
		}
		pg_ratelimit /all PREFIX_all {
			key {query.token}
			limit 1 1h
			timeout 10s
			audit all
			zone PREFIX_wide {
				key {method}
				limit 100 1h
				cost 3
			}
		}
		pg_ratelimit /secret/* PREFIX_secret {
			key {path.1}
			hash_key on
			limit 1 1h
			timeout 10s
			audit all
		}
		pg_ratelimit /sample PREFIX_sample {
			limit 100000 1h
			timeout 10s
			audit sample 50%
		}
		pg_ratelimit /zones/* {
			timeout 10s
			audit off
			zone PREFIX_all_in_zone {
				match path /zones/all
				limit 1 1h
				audit all
			}
			zone PREFIX_off_in_zone {
				match path /zones/off
				limit 1 1h
			}
		}
		basic_auth /login {
			ann $2a$04$2Okko7Mq9J.4emMr2nwrQ.hwDArGR9PHK5WFIM7JYAult0Wk1yh1i
		}
		pg_ratelimit /login PREFIX_login {
			key {http.auth.user.id}
			limit 100 1h
			timeout 10s
			audit all
		}
		pg_ratelimit /late/passed PREFIX_passed {
			limit 100 1h
			timeout 100ms
		}
		pg_ratelimit /late/refused PREFIX_refused {
			limit 100 1h
			timeout 100ms
			on_error deny
		}
	}`

func TestTheAuditIsSetForAHandlerAndAZone(t *testing.T) {
	const samples = 200
	dsn := cluster.Open(t)
	c := start(t, strings.ReplaceAll(historySites, "DSN", dsn))
	for range samples {
		c.expect(http.StatusOK, "/sample")
	}
	for _, path := range []string{"/default", "/off", "/all?token=" + token, "/zones/all", "/zones/off"} {
		c.expect(http.StatusOK, path)
		c.expect(http.StatusTooManyRequests, path)
	}
	c.expect(http.StatusOK, "/zones/none")
	c.expect(http.StatusOK, "/secret/"+token)
	c.expect(http.StatusOK, "/login", "Authorization", "Basic YW5uOnNlY3JldA==")
	lock := cluster.Watch(t, t.Context(), dsn)
	defer lock.Close(t.Context())
	if _, err := lock.Exec(t.Context(), "BEGIN; LOCK TABLE rate_limit_ephemeral"); err != nil {
		t.Fatal(err)
	}
	c.expect(http.StatusOK, "/late/passed")
	c.expect(http.StatusServiceUnavailable, "/late/refused")
	if _, err := lock.Exec(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}

	rows := c.recorded(dsn, `SELECT concat_ws(' ', decision, reason, prefix, key, user_id, address, status, cost, quota, remaining, also::text, path)
		FROM rate_limit_audit WHERE path IS DISTINCT FROM '/sample' ORDER BY time`)
	checkRows(t, "the audit log", rows, []string{
		"limited PREFIX_default 127.0.0.0/24 127.0.0.0/24 429 1 1 0 /default",
		"allowed PREFIX_all DIGEST 127.0.0.0/24 1 1 0 {PREFIX_wide,GET} /all",
		"limited PREFIX_all DIGEST 127.0.0.0/24 429 1 1 0 {PREFIX_wide,GET} /all",
		"allowed PREFIX_all_in_zone 127.0.0.0/24 127.0.0.0/24 1 1 0 /zones/all",
		"limited PREFIX_all_in_zone 127.0.0.0/24 127.0.0.0/24 429 1 1 0 /zones/all",
		"allowed PREFIX_secret DIGEST 127.0.0.0/24 1 1 0",
		"allowed PREFIX_login ann ann 127.0.0.0/24 1 100 99 /login",
		"error timeout PREFIX_passed 127.0.0.0/24 127.0.0.0/24 1 /late/passed",
		"error timeout PREFIX_refused 127.0.0.0/24 127.0.0.0/24 503 1 /late/refused",
	})
	metrics := c.recorded(dsn, "SELECT concat_ws(' ', prefix, sum(requests), sum(allowed), sum(limited), sum(errors), sum(cost)) FROM rate_limit_metrics GROUP BY prefix ORDER BY prefix")
	checkRows(t, "the metrics", metrics, []string{
		"PREFIX_all 2 1 1 0 1", "PREFIX_all_in_zone 2 1 1 0 1", "PREFIX_default 2 1 1 0 1", "PREFIX_login 1 1 0 0 1", "PREFIX_off 2 1 1 0 1", "PREFIX_off_in_zone 2 1 1 0 1",
		"PREFIX_passed 1 0 0 1 1", "PREFIX_refused 1 0 0 1 0", "PREFIX_sample 200 200 0 0 200", "PREFIX_secret 1 1 0 0 1",
	})
	n := cluster.Query[int](t, dsn, "SELECT count(*) FROM rate_limit_audit WHERE path = '/sample' AND weight = 2")
	if n < samples/4 || n > samples*3/4 {
		t.Errorf("of %d requests, %d are in the sample of 50%%", samples, n)
	}
	checkMetrics(t, map[string]float64{
		"history_written_total": float64(n + len(rows)), "history_dropped_total audit": 0, "history_dropped_total metrics": 0, "history_dropped_total usage": 0, "history_pending": 0,
	})
	c.secrets(dsn, token, "YW5uOnNlY3JldA", "127.0.0.1/")
}
