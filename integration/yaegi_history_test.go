package integration

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// audited is the audit log of a database, without what differs between two runs: equal refusals are one row or two,
// by whether a second begins between them.
const audited = `SELECT concat_ws(' ', decision, reason, prefix, limit_name, key, user_id, key_id, tier, address, host, method, path, region, status, cost, quota, min(remaining), also::text,
		sum(count), avg(weight), min(duration_us) BETWEEN 1 AND 30000000, max(retry_after_ms) > 0)
	FROM rate_limit_audit GROUP BY decision, reason, prefix, limit_name, key, user_id, key_id, tier, address, host, method, path, region, status, cost, quota, also`

const (
	measured = `SELECT concat_ws(' ', prefix, host, route, region, sum(requests), sum(allowed), sum(limited), sum(blocked), sum(rejected), sum(errors), sum(shadow), sum(cost))
		FROM rate_limit_metrics WHERE granularity = 'minute' GROUP BY prefix, host, route, region`
	used = `SELECT concat_ws(' ', user_id, key_id, sum(requests), sum(cost), sum(refused)) FROM rate_limit_usage GROUP BY user_id, key_id`
)

// awaitHistory waits until the metrics have so many requests. They are the last that is written.
func awaitHistory(t *testing.T, dsn string, n int) {
	t.Helper()
	await(t, "the history", func() bool {
		return cluster.Query[int64](t, dsn, "SELECT count(*) FROM pg_class WHERE relname = 'rate_limit_usage'") == 1 &&
			cluster.Query[int64](t, dsn, "SELECT coalesce(sum(requests), 0)::bigint FROM rate_limit_metrics WHERE granularity = 'minute'") >= int64(n)
	})
}

func sortedLines(t *testing.T, dsn, sql string) string {
	t.Helper()
	lines := queryLines(t, dsn, sql)
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// telling is an upstream that answers with what the proxy tells it.
var telling = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintf(w, "%q %q %q %q %q", r.Header["X_ratelimit_user"], r.Header["X-Ratelimit-User"], r.Header["X-Ratelimit-Tier"], r.Header["X-Ratelimit-Key-Id"], r.Header["X-Ratelimit-Rule"])
})

// TestInterpretedHistoryHasWhatCompiledHas sends the same requests to the compiled and to the
// interpreted plugin, each with a database of its own that has the same rows. The upstream learns the same, too.
// TestTheProxiesAnswerTheSame compares the answers and what counts towards bans.
func TestInterpretedHistoryHasWhatCompiledHas(t *testing.T) {
	p := loadPlugin(t)
	key, insert := newKey(t, 7, "alice")
	revoked, insertRevoked := newKey(t, 8, "bob")
	sql := people + insert + insertRevoked + `
		UPDATE rate_limit_api_keys SET revoked_at = now() WHERE id = 8;
		INSERT INTO rate_limit_bans (user_id, until) VALUES ('mallory', now() + interval '1 h');
		SELECT rate_limit_rule('free', tiers => '{free}', algorithm => 'fixed_window', per_hour => 2, per_day => 9);
		SELECT rate_limit_rule('pro', tiers => '{pro}', paths => '{/pay}', algorithm => 'fixed_window', per_hour => 1, status => 402, message => 'Pay', retry_after => '90 s');
		SELECT rate_limit_rule('trial', mode => 'shadow', paths => '{/trial}', algorithm => 'fixed_window', per_hour => 1);
		SELECT rate_limit_rule('closed', action => 'block', paths => '{/closed/*}');
		SELECT rate_limit_rule('health', action => 'exempt', paths => '{/health}');`
	dsnGo, dsnYaegi := policyDatabase(t, sql), policyDatabase(t, sql)
	handlers := func(dsn string) []object {
		history := object{"auditAddress": "prefix", "retention": object{"audit": "30d", "usage": "1y"}}
		zones := []object{{"prefix": "token", "key": "{header.X-Token}", "limit": "3 1h", "algorithm": "fixed_window", "cost": "2"}, {"prefix": "all", "key": "everybody", "limit": "1000 1h"}}
		return []object{
			{"dsn": dsn, "timeout": "30s", "region": "eu", "history": history, "audit": "all", "policy": object{"apiKey": "{header.Authorization}", "user": "{header.X-User}", "route": "{header.X-Route}", "forwardHeaders": true}},
			{"dsn": dsn, "timeout": "30s", "region": "eu", "history": history, "zones": zones},
			{"dsn": dsn, "timeout": "30s", "region": "eu", "history": history, "audit": "all", "prefix": "leased", "limit": "1000 1h", "lease": "5%"},
			{"dsn": "postgres://nobody@127.0.0.1:1/none", "timeout": "1s", "onError": "deny", "audit": "all", "prefix": "down", "limit": "1 1h"},
		}
	}
	forGo, forYaegi := handlers(dsnGo), handlers(dsnYaegi)
	sent := 0
	for i := range forGo {
		byGo, byYaegi := compiled(t, telling, forGo[i]), p.mustHandler(t, telling, forYaegi[i])
		send := func(path string, headers ...string) {
			a, b := askPath(byGo, path, headers...), askPath(byYaegi, path, headers...)
			if a.Code != b.Code || withoutDigits(a.Body.String()) != withoutDigits(b.Body.String()) || strings.Contains(b.Body.String(), "root") {
				t.Errorf("%s %v: %d %s compiled, %d %s interpreted", path, headers, a.Code, a.Body, b.Code, b.Body)
			}
		}
		switch i {
		case 0:
			for _, request := range [][]string{
				{"/a//b?api_key=" + key, "Authorization", "Bearer " + key, "X-Route", "shop"}, {"/", "X-User", "alice"}, {"/", "Authorization", key}, {"/", "X-User", "bob"},
				{"/closed/x"}, {"/", "X-User", "mallory"}, {"/?key=prl_unknown", "Authorization", "prl_unknown"}, {"/", "Authorization", revoked}, {"/a%2F..%2Fb"}, {"/health", "X-User", "alice"},
				{"/pay", "X-User", "bob"}, {"/pay", "X-User", "bob"}, {"/trial", "X-User", "bob"}, {"/trial", "X-User", "bob"},
				{"/", "X-User", "bob", "X_RateLimit_User", "root"}, {"/", "X-RateLimit-User", "root"}, {"/health", "Authorization", "Bearer " + key, "X-RateLimit-User", "root"},
				{"/", "X-User", "bob", "Authorization", strings.Repeat("long", 200) + "\xff"},
			} {
				send(request[0], request[1:]...)
				sent++
			}
		case 1:
			for range 3 {
				send("/zones", "X-Token", "hunter2")
				sent++
			}
		case 2:
			var wait sync.WaitGroup
			for range 8 {
				wait.Go(func() {
					for range 25 {
						send("/leased")
					}
				})
			}
			wait.Wait()
			sent += 8 * 25
		case 3:
			send("/down")
		}
	}
	awaitHistory(t, dsnGo, sent)
	awaitHistory(t, dsnYaegi, sent)
	for name, sql := range map[string]string{
		"the audit log": strings.ReplaceAll(audited, "FROM rate_limit_audit", "FROM (SELECT * FROM rate_limit_audit WHERE prefix <> 'leased') AS a"), "the metrics": measured, "the usage": used,
		"the leases":    "SELECT concat_ws(' ', sum(count), min(quota)) FROM rate_limit_audit WHERE prefix = 'leased'",
		"the retention": "SELECT concat_ws(' ', what, keep) FROM rate_limit_retention ORDER BY what",
	} {
		inGo, inYaegi := sortedLines(t, dsnGo, sql), sortedLines(t, dsnYaegi, sql)
		if inGo != inYaegi || inGo == "" {
			t.Errorf("%s: compiled\n%s\ninterpreted\n%s", name, inGo, inYaegi)
		}
		for _, secret := range []string{key, revoked, "prl_unknown", "hunter2", "127.0.0.1/", "192.0.2.1 "} {
			if strings.Contains(inYaegi, secret) {
				t.Errorf("%s has a secret", name)
			}
		}
	}
	if n := cluster.Query[int64](t, dsnYaegi, "SELECT count(*) FROM rate_limit_audit WHERE node NOT LIKE '%/traefik'"); n != 0 {
		t.Errorf("%d rows have another node", n)
	}
	if log := p.err.String(); strings.Contains(log, key) || strings.Contains(log, "panic") {
		t.Errorf("log: %s", log)
	}
}
