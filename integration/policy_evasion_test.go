package integration

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// TestPathParametersDoNotPassABlockRule: many upstreams read /admin;x=1 as /admin.
func TestPathParametersDoNotPassABlockRule(t *testing.T) {
	t.Parallel()
	dsn := policyDatabase(t, `
		SELECT rate_limit_rule('closed', action => 'block', paths => '{/pol/admin/*,/admin}', priority => 900);
		SELECT rate_limit_rule('tried', action => 'block', mode => 'shadow', paths => '{/tried}');
		SELECT rate_limit_rule('health', action => 'exempt', paths => '{/health}');
		SELECT rate_limit_rule('api', paths => '{/api/*}', count_by => '{all}', per_hour => 1000000);
		SELECT rate_limit_rule('login', paths => '{/login}', count_by => '{all}', per_hour => 1000000);`)
	urls := governedProxies(t, dsn)
	for _, url := range urls {
		for path, want := range map[string]string{
			"/pol/admin":                  "403",
			"/pol/admin;x=1":              "400",
			"/pol/admin;":                 "400",
			"/pol;a/admin;b/c;d":          "400",
			"/pol/admin/c;d":              "403", // in both readings
			"/x/..;/admin":                "400",
			"/x/..;a=b/admin":             "400",
			"/x/%2e%2e;/admin":            "400",
			"/x/.%2e;a/admin":             "400",
			"/.;/admin":                   "400",
			"/;/admin":                    "400",
			"/;a=b/admin;c=d":             "400",
			"/admin;/x":                   "200", // /admin/x without its parameters
			"/health;x":                   "400",
			"/login;jsessionid=4711":      "400",
			"/api/cars;color=red/list":    "200 api",
			"/api;v=1/cars":               "400",
			"/elsewhere;x=1/y;z":          "200",
			"/tried;x":                    "200", // a shadow rule refuses nothing
			"/pol/administrator;x/y":      "200",
			"/elsewhere/a;b=pol/admin":    "200",
			"/elsewhere;x=/pol/admin":     "200",
			"/elsewhere/%253b/pol/admin":  "200", // decoded once
			"/elsewhere/x%3Ba/%2e%2e;b/c": "400",
		} {
			a := harness.Ask(t, harness.Get(url+path))
			got := fmt.Sprint(a.Status)
			if a.Header.Get("X-RateLimit-Limit") != "" && strings.HasPrefix(path, "/api/") {
				got += " api"
			}
			if got != want || a.Status == http.StatusBadRequest && !strings.Contains(a.Body, "Ambiguous path") {
				t.Errorf("%s%s: %s %s, want %s", url, path, got, a.Body, want)
			}
		}
		// Traefik itself may refuse an encoded semicolon.
		for _, path := range []string{"/admin%3bx", "/pol/admin%3Bx=1", "/x/..%3b/admin", "/x/%2e%2e%3B/admin", "/pol;a/admin%3bx", "/pol/admin%3b/c%2Fd", "/pol%3ba%2fb/admin", "/pol;a%2Fadmin/x", "/pol%2Fadmin;x"} {
			if a := harness.Ask(t, harness.Get(url+path)); a.Status != http.StatusBadRequest && a.Status != http.StatusForbidden {
				t.Errorf("%s%s: %d %s, want 400", url, path, a.Status, a.Body)
			}
		}
	}
	// Traefik resolves dot segments before it asks its middlewares, and its upstream sees the result.
	for _, url := range urls[:2] {
		for _, path := range []string{"/x/y/..;/../admin", "/a/../b;c"} {
			if a := harness.Ask(t, harness.Get(url+path)); a.Status != http.StatusBadRequest {
				t.Errorf("%s%s: %d %s, want 400", url, path, a.Status, a.Body)
			}
		}
	}
}

// TestALimitByAHeaderHoldsWithoutTheHeader: requests without the header share one counter, which is
// nobody else's, unless the rule says skip.
func TestALimitByAHeaderHoldsWithoutTheHeader(t *testing.T) {
	t.Parallel()
	dsn := policyDatabase(t, `
		SELECT rate_limit_rule('tenant', paths => '{/tenant}', count_by => '{header:X-Tenant}', algorithm => 'fixed_window', per_hour => 3);
		SELECT rate_limit_rule('both', paths => '{/both}', count_by => '{header:X-Tenant,header:X-Other}', algorithm => 'fixed_window', per_hour => 3);
		SELECT rate_limit_rule('skipping', paths => '{/skipping}', count_by => '{header:X-Tenant}', without_header => 'skip', algorithm => 'fixed_window', per_hour => 3);`)
	urls := governedProxies(t, dsn)
	// Each of the proxies gets two of the requests, so six are sent, and three of them pass.
	for _, c := range []struct {
		path    string
		headers []string
		passes  int
	}{
		{"/tenant", nil, 3},
		{"/tenant", []string{"X-Tenant", ""}, 0}, // the counter of those before
		{"/tenant", []string{"X-Tenant", "%empty"}, 3},
		{"/tenant", []string{"X-Tenant", "%25empty"}, 3},
		{"/both", []string{"X-Tenant", "blue"}, 3},
		{"/both", []string{"X-Other", "blue"}, 3},
		{"/both", nil, 3},
		{"/both", []string{"X-Tenant", "blue", "X-Other", "blue"}, 3},
		{"/skipping", nil, 6},
		{"/skipping", []string{"X-Tenant", "blue"}, 3},
	} {
		passes := 0
		for range 2 {
			for _, url := range urls {
				switch a := harness.Ask(t, harness.Get(url+c.path, c.headers...)); a.Status {
				case http.StatusOK:
					passes++
				case http.StatusTooManyRequests:
				default:
					t.Fatalf("%s%s: %d %s", url, c.path, a.Status, a.Body)
				}
			}
		}
		if passes != c.passes {
			t.Errorf("%s %v: %d of 6 requests passed, want %d", c.path, c.headers, passes, c.passes)
		}
	}
}

// TestAHugeCostBeyondAQuotaRefusesNothing: a limit with overage counts all requests, however much
// each of them costs.
func TestAHugeCostBeyondAQuotaRefusesNothing(t *testing.T) {
	t.Parallel()
	dsn := policyDatabase(t, `
		SELECT rate_limit_rule('fixed', paths => '{/fixed}', count_by => '{all}', cost => 9007199254740992, algorithm => 'fixed_window', per_hour => 5, on_exceed => 'overage');
		SELECT rate_limit_rule('sliding', paths => '{/sliding}', count_by => '{all}', cost => 9007199254740991, per_hour => 5, on_exceed => 'overage');`)
	urls := governedProxies(t, dsn)
	for path, cost := range map[string]int64{"/fixed": 9007199254740992, "/sliding": 9007199254740991} {
		for i := int64(1); i <= 12; i++ {
			url := urls[int(i)%len(urls)]
			a := harness.Ask(t, harness.Get(url+path))
			if want := fmt.Sprint(i*cost - 5); a.Status != http.StatusOK || a.Header.Get("X-RateLimit-Overage") != want || a.Header.Get("X-RateLimit-Limit") != "5" || a.Header.Get("X-RateLimit-Remaining") != "0" {
				t.Errorf("%s%s, request %d: %d %v, want an overage of %s", url, path, i, a.Status, a.Header, want)
			}
		}
		if n := queryInt(t, dsn, "SELECT count FROM rate_limit_ephemeral WHERE prefix = 'rule"+path+"/per_hour'"); n != 12*cost {
			t.Errorf("%s: the counter is %d, want %d", path, n, 12*cost)
		}
	}
}

// TestAKeyInAPathIsNotRecorded: a client writes its API key into the path or the host, too.
func TestAKeyInAPathIsNotRecorded(t *testing.T) {
	t.Parallel()
	key, insert := newKey(t, 1, "alice")
	other, _ := newKey(t, 2, "alice")
	const imported = "sk+live/51Hx8aQ2eZvK+Ylo2CwqB7rT9uVb3=="
	digest := policy.Digest(imported)
	dsn := policyDatabase(t, people+insert+fmt.Sprintf("INSERT INTO rate_limit_api_keys (id, digest, user_id) VALUES (9, '\\x%x', 'bob');", digest)+`
		SELECT rate_limit_rule('plan', per_hour => 1000);
		SELECT rate_limit_rule('closed', action => 'block', paths => '{/closed/*}');
		SELECT rate_limit_rule('tried', mode => 'shadow', per_hour => 1);`)
	urls := governedBy(t, dsn, []string{"timeout 30s", "on_error deny", "audit all"}, decideAlways(object{"audit": "all"}))
	search := &secretSearch{t: t, keys: map[string]string{"valid": key, "other": other, "imported": imported, "lower case": strings.ToLower(key), "encoded": "sk%2Blive%2F51Hx8aQ2eZvK%2BYlo2CwqB7rT9uVb3%3D%3D"}}
	for _, url := range urls {
		for _, path := range []string{
			"/a/" + key, "/a/" + other + "/b", "/" + strings.Repeat("long/", 37) + key, "/closed/" + key, "/a;" + key + "/x", "/a/../" + strings.Replace(key, "prl_", "%70rl_", 1) + ";x",
			"/a/..%2F" + strings.Replace(key, "prl_", "%70rl_", 1), "/a/" + imported, "/closed/sk%2Blive%2F51Hx8aQ2eZvK%2BYlo2CwqB7rT9uVb3%3D%3D/x", "/a/../sk%2Blive%2F51Hx8aQ2eZvK%2BYlo2CwqB7rT9uVb3%3D%3D;x",
		} {
			sent := key
			if strings.Contains(path, "51Hx8") {
				sent = imported
			}
			request := harness.Get(url+path, "Authorization", "Bearer "+sent)
			if strings.HasPrefix(path, "/closed/prl_") {
				request.Host = key + ".example.com"
			}
			harness.Ask(t, request)
		}
		harness.Ask(t, harness.Get(url+"/last"))
	}
	await(t, "the history to be written", func() bool {
		return queryInt(t, dsn, "SELECT count(*) FROM rate_limit_audit WHERE path = '/last' AND decision <> 'shadow'") == int64(len(urls)) &&
			queryInt(t, dsn, "SELECT coalesce(sum(requests), 0) FROM rate_limit_metrics WHERE granularity = 'minute' AND host = '(key).example.com'") == 1 // Caddy serves other hosts alone
	})
	search.inDatabase(dsn)
	if n := queryInt(t, dsn, "SELECT count(*) FROM rate_limit_audit WHERE path LIKE '%(key)%'"); n < int64(len(urls)) {
		t.Errorf("%d paths in the audit log have (key)", n)
	}
}
