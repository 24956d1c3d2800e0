package caddymodule_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/caddymodule"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
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

func TestTheHistorySaysWhatHappenedToEachRequest(t *testing.T) {
	key, insert := insertKey(t, 7, "alice")
	revoked, insertRevoked := insertKey(t, 8, "bob")
	other, insertOther := insertKey(t, 9, "bob")
	dsn := withPolicy(t, people+insert+insertRevoked+insertOther+`
		UPDATE rate_limit_api_keys SET revoked_at = now() WHERE id = 8;
		INSERT INTO rate_limit_bans (user_id, until) VALUES ('mallory', now() + interval '1 h');
		SELECT rate_limit_rule('plan', tiers => '{free}', algorithm => 'fixed_window', per_hour => 2, per_day => 9);
		SELECT rate_limit_rule('closed', action => 'block', paths => '{/closed/*}');
		SELECT rate_limit_rule('health', action => 'exempt', paths => '{/health}');
		SELECT rate_limit_rule('trial', mode => 'shadow', paths => '{/trial}', algorithm => 'fixed_window', per_hour => 1, per_day => 1);
		SELECT rate_limit_rule('trap', mode => 'shadow', action => 'block', paths => '{/trap}');
		SELECT rate_limit_rule('pass', mode => 'shadow', action => 'exempt', paths => '{/trial}');`)
	c := start(t, strings.ReplaceAll(`
		{
			pg_ratelimit {
				dsn DSN
				node_name caddy-1
				region eu
				history {
					retention {
						audit 30d
						usage 1y
					}
				}
			}
		}
		:PORT {
			pg_ratelimit {
				timeout 10s
				audit all
				policy {
					api_key {header.Authorization}
					user {header.X-User}
					route {header.X-Route}
				}
				zone PREFIX {
					match path /zone/*
					key {header.X-Token}
					limit 1 1h
					algorithm fixed_window
				}
			}
		}
		http://path.test:PORT {
			pg_ratelimit {
				timeout 10s
				audit all
				policy {
					api_key {path.1}
				}
			}
		}`, "DSN", dsn))
	c.expect(http.StatusOK, "/a//b/?api_key="+key, "Authorization", "Bearer "+key, "Host", "Shop.Test.:80", "X-Route", "shop")
	c.expect(http.StatusOK, "/", "X-User", "alice")
	c.expect(http.StatusTooManyRequests, "/", "Authorization", key)
	c.expect(http.StatusForbidden, "/closed/x")
	c.expect(http.StatusForbidden, "/", "X-User", "mallory")
	c.expect(http.StatusUnauthorized, "/?key=prl_unknown", "Authorization", "prl_unknown")
	c.expect(http.StatusUnauthorized, "/", "Authorization", revoked)
	c.expect(http.StatusBadRequest, "/a%2F..%2Fb")
	c.expect(http.StatusOK, "/health", "X-User", "alice")
	c.expect(http.StatusOK, "/", "X-User", "bob")
	c.expect(http.StatusOK, "/zone/x", "X-User", "bob", "X-Token", token)
	c.expect(http.StatusTooManyRequests, "/zone/x", "X-User", "bob", "X-Token", token)
	c.expect(http.StatusOK, "/trial", "X-User", "bob")
	c.expect(http.StatusOK, "/trial", "X-User", "bob")
	c.expect(http.StatusOK, "/trap", "X-User", "bob")
	c.expect(http.StatusOK, "/key/"+other+"/x", "Host", "path.test")

	rows := c.recorded(dsn, `SELECT concat_ws(' ', decision, reason, prefix, limit_name, coalesce(key, '-'), coalesce(user_id, '-'), key_id, tier, status, quota, remaining, also::text, path)
		FROM rate_limit_audit ORDER BY time, decision`)
	checkRows(t, "the audit log", rows, []string{
		"allowed rule/plan per_hour alice alice 7 free 2 1 /a/b",
		"allowed rule/plan per_hour alice alice free 2 0 /",
		"limited rule/plan per_hour alice alice 7 free 429 2 0 /",
		"blocked blocked rule/closed - - anonymous 403 /closed/x",
		"blocked banned  - mallory anonymous 403 /",
		"rejected unknown_key  - - anonymous 401 /",
		"rejected key_revoked  - bob 8 anonymous 401 /",
		"rejected ambiguous_path  - - 400 /a%2F..%2Fb",
		"allowed rule/health - alice free /health",
		"allowed  - bob pro /",
		"allowed PREFIX DIGEST bob pro 1 0 /zone/x",
		"limited PREFIX DIGEST bob pro 429 1 0 /zone/x",
		"allowed  - bob pro {rule/trial,bob} /trial",
		"allowed  - bob pro {rule/trial,bob} /trial",
		"shadow rule/trial per_day bob bob pro 1 0 /trial",
		"allowed  - bob pro /trap",
		"shadow rule/trap - bob pro /trap",
		"allowed  - bob 9 pro",
	})
	if n := cluster.Query[int](t, dsn, `SELECT count(*) FROM rate_limit_audit WHERE node = 'caddy-1' AND region = 'eu' AND address = '127.0.0.1' AND method = 'GET' AND weight = 1 AND count = 1
		AND duration_us BETWEEN 1 AND 10000000 AND time BETWEEN now() - interval '1 h' AND now() + interval '1 s' AND (decision <> 'limited' OR retry_after_ms BETWEEN 1 AND 3600000)`); n != len(rows) {
		t.Errorf("%d of %d rows are complete", n, len(rows))
	}
	checkRows(t, "the metrics", c.recorded(dsn, `SELECT concat_ws(' ', prefix, route, region, sum(requests), sum(allowed), sum(limited), sum(blocked), sum(rejected), sum(errors), sum(shadow))
		FROM rate_limit_metrics WHERE prefix NOT LIKE 'TestThe%' AND granularity = 'minute' GROUP BY prefix, route, region ORDER BY prefix, route`), []string{
		"  eu 9 5 0 1 3 0 0",
		"rule/closed  eu 1 0 0 1 0 0 0",
		"rule/health  eu 1 1 0 0 0 0 0",
		"rule/plan  eu 2 1 1 0 0 0 0",
		"rule/plan shop eu 1 1 0 0 0 0 0",
		"rule/trap  eu 0 0 0 0 0 0 1",
		"rule/trial  eu 0 0 0 0 0 0 1",
	})
	checkRows(t, "the usage", c.recorded(dsn, `SELECT concat_ws(' ', user_id, key_id, sum(requests), sum(cost), sum(refused)) FROM rate_limit_usage GROUP BY user_id, key_id ORDER BY user_id, key_id`), []string{
		"alice 0 2 1 0",
		"alice 7 2 1 1",
		"bob 0 6 1 1",
		"bob 8 1 0 1",
		"bob 9 1 0 0",
		"mallory 0 1 0 1",
	})
	checkRows(t, "the retention", c.recorded(dsn, `SELECT concat_ws(' ', what, keep) FROM rate_limit_retention WHERE what IN ('audit', 'usage', 'metrics_day') ORDER BY what`), []string{"audit 30 days", "metrics_day 7 years", "usage 366 days"})
	checkRows(t, "the hosts", c.recorded(dsn, "SELECT DISTINCT host FROM rate_limit_audit UNION SELECT DISTINCT 'metrics ' || host FROM rate_limit_metrics ORDER BY 1"), []string{"127.0.0.1", "metrics 127.0.0.1", "metrics path.test", "metrics shop.test", "path.test", "shop.test"})
	c.secrets(dsn, key, revoked, other, token, "prl_unknown")
}

// A request that the policy cannot decide is an error in the history, also if a limit lets it pass.
func TestTheHistoryHasRequestsWithoutAPolicy(t *testing.T) {
	dsn := withPolicy(t, people+"SELECT rate_limit_rule('plan', per_hour => 100);")
	c := start(t, strings.ReplaceAll(`
		:PORT {
			pg_ratelimit {
				dsn DSN
				timeout 200ms
				audit denied
				policy {
					user {header.X-User}
				}
				zone PREFIX {
					match path /zone
					limit 100 1h
				}
			}
		}`, "DSN", dsn))
	await.Within(t, time.Minute, "the rules are known", func() bool { return measured(t)["policy_version"] > 0 })
	lock := cluster.Watch(t, t.Context(), dsn)
	defer lock.Close(t.Context())
	if _, err := lock.Exec(t.Context(), "BEGIN; LOCK TABLE rate_limit_users"); err != nil {
		t.Fatal(err)
	}
	c.expect(http.StatusOK, "/", "X-User", "carol")
	c.expect(http.StatusOK, "/zone", "X-User", "dave")
	if _, err := lock.Exec(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	rows := c.recorded(dsn, "SELECT concat_ws(' ', decision, reason, prefix, user_id, status, path) FROM rate_limit_audit ORDER BY time")
	checkRows(t, "the audit log", rows, []string{"error timeout  carol /", "error timeout PREFIX dave /zone"})
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
