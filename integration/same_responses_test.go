package integration

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httputil"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/seed"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// serveHandlers serves each configuration below its path.
func serveHandlers(t *testing.T, handlers map[string]http.Handler) string {
	t.Helper()
	return harness.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		handlers["/"+strings.SplitN(r.URL.Path, "/", 3)[1]+"/"].ServeHTTP(w, r)
	})
}

// Random requests to random configurations get the same responses from Caddy, the interpreted plugin and
// httplimit, and leave the same rows. docs/traefik.md, "Differences", lists what differs. The configurations
// have no leases, and the test ignores waits, because these depend on the time.
func TestProxiesRespondTheSame(t *testing.T) {
	t.Parallel()
	configurations, requests := 40, 300
	if testing.Short() {
		configurations, requests = 8, 40
	}
	number := seed.Of(t)
	random := rand.New(rand.NewPCG(number, 1))
	key, insert := policytest.NewKey(t, 7, "alice")
	revoked, insertRevoked := policytest.NewKey(t, 8, "bob")
	sql := policytest.People + insert + insertRevoked +
		"UPDATE rate_limit_api_keys SET revoked_at = now() WHERE id = " +
		"8; INSERT INTO rate_limit_bans (user_id) VALUES ('mallory');"
	var configs []*randomConfig
	for n := range configurations {
		configs = append(configs, makeUp(random, n))
		sql += rulesOf(fmt.Sprintf("/c%d/", n))
	}
	var sent []*madeUpRequest
	for range requests {
		keys := []string{"Bearer " + key, "bearer  " + key, revoked, "unknown"}
		sent = append(sent, makeUpRequest(random, keys))
	}
	dsns := []string{policytest.Open(t, sql), policytest.Open(t, sql), cluster.Open(t)}
	names := []string{"Caddy", "the plugin", "httplimit"}
	urls := serveAll(t, configs, dsns)
	for _, dsn := range dsns[:2] {
		awaitPolicyApplied(t, dsn, 1)
	}

	var wait sync.WaitGroup
	var statuses sync.Map
	for n, c := range configs {
		wait.Go(func() { c.ask(t, n, sent, names, urls, &statuses) })
	}
	wait.Wait()
	for _, status := range []int{200, 400, 401, 402, 403, 404, 429} {
		if _, seen := statuses.Load(status); !seen && !testing.Short() {
			t.Errorf("no response has status %d, want each status", status)
		}
	}
	if t.Failed() {
		return
	}
	checkHistoriesAreTheSame(t, dsns[0], dsns[1])
	const inGo = "^c[0-9]*[02468]-"
	if alone := difference(rowsIn(t, dsns[0], inGo), rowsIn(t, dsns[2], inGo)); len(alone) > 0 {
		t.Errorf("only Caddy (-) or httplimit (+) has these rows:\n%s", strings.Join(alone, "\n"))
	}
}

// histories has queries for the rows that requests leave in a database, without times and node names.
var histories = map[string]string{
	"the counters": rowsOf("^c|^rule"),
	// Equal refusals of a second are one row, with the address and the path of the first. A hidden key has a
	// salt of its database.
	"the audit log": `SELECT concat_ws(' ', sum(count), outcome, shadow, reason, prefix, limit_name, hidden,
			user_id, key_id, tier, request,
			status, cost, quota, min(duration_us) BETWEEN 1 AND 30000000, max(retry_after_ms) > 0)
		FROM (SELECT *, CASE outcome WHEN 'admitted' THEN concat_ws(' ', address, host,
				method, path) END AS request,
			regexp_replace(key, '^sha256:.*', 'hidden') AS hidden FROM rate_limit_audit) a
		GROUP BY outcome, shadow, reason, prefix, limit_name, hidden, user_id, key_id, tier, request,
		status, cost, quota`,
	"the metrics": `SELECT concat_ws(' ', user_id, key_id, prefix, limit_name, endpoint, sum(requests),
			sum(admitted), sum(limited), sum(blocked), sum(rejected), sum(overloaded), sum(failed),
			sum(shadow), sum(settled),
			(SELECT sum(n) = sum(requests) FROM unnest(rate_limit_sum(durations)) n))
		FROM rate_limit_metrics WHERE granularity = 'minute'
		GROUP BY user_id, key_id, prefix, limit_name, endpoint`,
}

// difference returns the lines that only one of two lists has, with - or + before them.
func difference(a, b []string) (alone []string) {
	for _, line := range a {
		if !slices.Contains(b, line) {
			alone = append(alone, "- "+line)
		}
	}
	for _, line := range b {
		if !slices.Contains(a, line) {
			alone = append(alone, "+ "+line)
		}
	}
	return alone
}

// rowsOf selects the counters of the prefixes, with what is counted in windows.
func rowsOf(prefixes string) string {
	const counters = `SELECT concat_ws(' ', prefix, key, CASE WHEN prefix LIKE '%%_window' THEN count END)
		FROM %s WHERE prefix ~ '%s'`
	return fmt.Sprintf(counters+" UNION ALL "+counters, "rate_limit_ephemeral", prefixes,
		"rate_limit_durable", prefixes)
}

// rowsIn returns the counters of the prefixes in a database.
func rowsIn(t *testing.T, dsn, prefixes string) []string {
	return cluster.Texts(t, dsn, rowsOf(prefixes))
}

// ask sends all requests to one configuration in each proxy, and compares the responses. It stores their
// statuses.
func (c *randomConfig) ask(t *testing.T, n int, sent []*madeUpRequest, names, urls []string,
	statuses *sync.Map) {
	client, closeIdle := harness.NewClient(1)
	defer closeIdle()
	if !c.inGo {
		names = names[:2]
	}
	matches := slices.ContainsFunc(c.zones, func(z settings.Values) bool { return z["match"] != "" })
	wrong := 0
	for i, q := range sent {
		path, _, _ := strings.Cut(q.path, "?")
		if c.inGo && strings.Contains(path, "limited") {
			continue // httplimit leaves the headers of an upstream as they are
		}
		if matches && strings.ContainsAny(path, "FB;") {
			continue // Caddy's matchers read %2F as a slash and B as b, and do not read ..; as a parent
		}
		responses := make([]string, len(names))
		for at := range names {
			request, err := http.NewRequest(q.method, fmt.Sprintf("%s/c%d/%s", urls[at], n, q.path), nil)
			if err != nil {
				t.Error(err)
				return
			}
			if !c.inGo { // a Go program finds addresses itself
				request.Header.Set("X-Forwarded-For", q.address)
			}
			for j := 0; j < len(q.headers); j += 2 {
				request.Header.Add(q.headers[j], q.headers[j+1])
			}
			request.Host = q.host
			response, err := harness.AskBy(client, request)
			if err != nil {
				t.Errorf("%s: %v", names[at], err)
				return
			}
			for _, field := range []string{"RateLimit", "RateLimit-Policy"} {
				list, err := httpsfv.UnmarshalList(response.Header.Values(field))
				isRequired := response.Status == 429 && strings.Contains(c.settings["fields"], "ietf")
				if err != nil || isRequired && len(list) == 0 {
					t.Errorf("%s: %s is %q, error %v, want a list of structured fields", names[at], field,
						response.Header.Values(field), err)
				}
			}
			responses[at] = c.normalizeResponse(response)
			statuses.Store(response.Status, true)
		}
		for at := range responses {
			if responses[at] != responses[0] {
				t.Errorf("configuration %d, request %d %+v:\n%s: %s\n%s: %s\nwant the same from\n%s", n, i,
					*q,
					names[0], responses[0], names[at], responses[at],
					directive(c.limit(fmt.Sprintf("/c%d/", n))))
				if wrong++; wrong == 3 {
					return
				}
			}
		}
	}
}

// serveAll serves configurations by Caddy, the plugin and httplimit, each with a database, and returns their
// URLs.
func serveAll(t *testing.T, configs []*randomConfig, dsns []string) (urls []string) {
	t.Helper()
	upstream := startUpstream(t)
	var routes []route
	p := loadPlugin(t)
	store := openStore(t, dsns[2], postgres.Options{DisableRememberedRefusals: true})
	middlewares, program := map[string]http.Handler{}, map[string]http.Handler{}
	for n, c := range configs {
		path := fmt.Sprintf("/c%d/", n)
		behind := httputil.NewSingleHostReverseProxy(upstream)
		limit := c.limit(path)
		routes = append(routes, route{path: path, backend: upstream.String(), limit: maps.Clone(limit)})
		limit["dsn"] = dsns[1]
		if c.inGo { // such a configuration has the addresses of connections
			program[path] = c.inProgram(t, store)(behind)
		} else {
			limit["ipStrategy"] = object{"depth": 1}
		}
		middlewares[path] = p.mustHandler(t, behind, limit)
	}
	address := harness.FreeAddress(t)
	config := harness.Replace(t, caddyfile(address, dsns[0], routes), "dsn ",
		"remembered_refusals off\n\t\tdsn ", "protocols h1 h2c",
		"protocols h1 h2c\n\t\ttrusted_proxies static 127.0.0.1/32\n\t\ttrusted_proxies_strict")
	caddy := startCaddyOn(t, address, config)
	return []string{caddy.url, serveHandlers(t, middlewares), serveHandlers(t, program)}
}

// checkHistoriesAreTheSame waits until Caddy and the plugin have recorded the same rows, because they settle
// and record requests in the background.
func checkHistoriesAreTheSame(t *testing.T, ofCaddy, ofPlugin string) {
	t.Helper()
	for name, sql := range histories {
		var byCaddy, byPlugin, alone []string
		same := false
		for end := time.Now().Add(awaitTimeout); !same && time.Now().Before(end); time.Sleep(time.Second) {
			byCaddy, byPlugin = cluster.Texts(t, ofCaddy, sql), cluster.Texts(t, ofPlugin, sql)
			alone = difference(byCaddy, byPlugin)
			same = len(byCaddy) > 1 && len(alone) == 0
		}
		if !same {
			t.Errorf("%s: Caddy has %d rows and the plugin %d, want the same; these differ:\n%s", name,
				len(byCaddy), len(byPlugin), strings.Join(alone, "\n"))
		}
	}
}
