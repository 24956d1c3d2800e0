package integration

import (
	_ "embed"
	"encoding/base64"
	"fmt"
	"io/fs"
	"net/http"
	neturl "net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
)

// keyFragments returns parts of an API key, plain and in base64, that must be nowhere. The hint of a key has
// other parts of the key.
func keyFragments(key string) []string {
	middle := key[len(key)/2-6 : len(key)/2+6]
	encoded := base64.StdEncoding.EncodeToString([]byte(key))
	return []string{middle, encoded[len(encoded)/2-8 : len(encoded)/2+8]}
}

// secretSearch searches texts for API keys.
type secretSearch struct {
	t     *testing.T
	keys  map[string]string // by their kind, such as revoked
	texts int               // the number of texts that were searched
}

// scan fails the test if a text has one of the keys. where names the text in messages.
func (s *secretSearch) scan(where, text string) {
	s.t.Helper()
	s.texts++
	for what, key := range s.keys {
		for _, trace := range keyFragments(key) {
			if at := strings.Index(text, trace); at >= 0 {
				s.t.Errorf("%s has the %s key: …%q…", where, what, text[max(0, at-200):min(len(text), at+80)])
				break
			}
		}
	}
}

// scanFolder fails the test if a file of a folder has one of the keys.
func (s *secretSearch) scanFolder(where, folder string) {
	s.t.Helper()
	before := s.texts
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		text, err := os.ReadFile(path)
		s.scan(where+" "+path, string(text))
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	if s.texts == before {
		s.t.Errorf("%s: %s has no files, want some", where, folder)
	}
}

// keySources are the placeholders from which the proxies take API keys, by path. The names X-Customer and c
// do not suggest a secret.
var keySources = []struct{ path, placeholder string }{
	{"/header", "{header.X-Api-Key}"}, {"/bearer", "{header.Authorization}"}, {"/query", "{query.api_key}"},
	{"/other", "{header.X-Customer}"}, {"/param", "{query.c}"},
}

// requestsWith returns requests to a proxy with an API key in each place.
func requestsWith(url, key string) []*http.Request {
	query := neturl.QueryEscape(key)
	return []*http.Request{
		harness.Get(url+"/header", "X-Api-Key", key), harness.Get(url+"/bearer", "Authorization",
			"Bearer "+key), harness.Get(url + "/query?api_key=" + query),
		harness.Get(url+"/other", "X-Customer", key), harness.Get(url + "/param?c=" + query),
	}
}

// Caddy's own logs have the queries of requests, and the headers except Authorization and cookies.
// docs/caddy.md shows how to leave the keys out.
const (
	withoutKeys = `format filter {
			request>headers>X-Api-Key delete
			request>headers>X-Customer delete
			request>uri query {
				delete api_key
				delete c
			}
		}`
	logsAndErrors = `	log
	handle /metrics {
		metrics
	}
	handle_errors 503 {
		respond "{err.message} {http.pg_ratelimit.key}"
	}`
)

// secretProxies starts a Caddy and a Traefik that log as much as they can. Both take API keys from all
// sources, for a policy and as keys of limits.
func secretProxies(t *testing.T, dsn, storage string) (c *proxy, tr *traefik) {
	t.Helper()
	var routes []route
	for i, s := range keySources {
		routes = append(routes, route{path: s.path, limit: object{"dsn": dsn, "prefix": fmt.Sprint("zone", i),
			"timeout": "10s", "onError": "deny",
			"key": s.placeholder, "limit": "8 1h", "policy": object{"apiKey": s.placeholder,
				"forwardHeaders": true}}})
	}
	address := harness.FreeAddress(t)
	config := harness.Replace(t, caddyfile(address, dsn, routes), "admin off",
		"admin off\n\tdebug\n\tmetrics\n\tstorage file_system "+storage,
		"format json", withoutKeys, "bind 127.0.0.1", "bind 127.0.0.1\n"+logsAndErrors)
	c = startCaddyOn(t, address, config)
	return c, startTraefikWith(t, "..", object{}, "DEBUG", routes)
}

// Valid, expired, revoked, invented, malformed and imported keys are sent in all places of a request, while
// the database is up and while it is down. Afterwards no key is in the database's files or its log of all
// statements, or in the proxies' logs, metrics, files and responses.
func TestNothingOfAKeyIsLeftBehind(t *testing.T) {
	t.Parallel()
	server := cluster.Private(t, cluster.Options{Config: map[string]string{"log_statement": "all",
		"log_min_duration_statement": "0"}})
	dsn := server.DSN("postgres")
	search, sql := keysToSearch(t)
	cluster.Execute(t, dsn, schema.File)
	cluster.Execute(t, dsn, sql)
	storage := t.TempDir()
	c, tr := secretProxies(t, dsn, storage)
	use := func(what string, statuses ...int) {
		for _, url := range []string{c.url, tr.url} {
			for _, request := range requestsWith(url, search.keys[what]) {
				a := harness.Ask(t, request)
				if !slices.Contains(statuses, a.Status) {
					t.Errorf("the %s key at %s%s: %d %s, want one of %v", what, url, request.URL.Path,
						a.Status,
						a.Body, statuses)
				}
				search.scan("a response to the "+what+" key", fmt.Sprint(a.Header, a.Body))
			}
		}
	}
	for what := range search.keys {
		switch what {
		case "valid", "imported":
			for range 5 { // two proxies exhaust the limits of 8
				use(what, http.StatusOK, http.StatusTooManyRequests)
			}
		case "late":
		default:
			use(what, http.StatusUnauthorized)
		}
	}
	n := cluster.Query[int64](t, dsn,
		"SELECT count(*) FROM rate_limit_ephemeral WHERE prefix LIKE 'zone%' AND key LIKE 'sha256:%'")
	if want := int64(2 * len(keySources)); n != want {
		t.Errorf("%d counters of the zones, want %d: one for each source and valid key", n, want)
	}
	// A rule is wrong, and the key "late" is looked up while the database is down.
	cluster.Execute(t, dsn, "ALTER TABLE rate_limit_rules DISABLE TRIGGER rate_limit_complete; INSERT INTO "+
		"rate_limit_rules (name, comment) VALUES ('wrong', 'no limits'); ALTER TABLE rate_limit_rules "+
		"ENABLE TRIGGER rate_limit_complete")
	metrics := harness.Ask(t, harness.Get(c.url+"/metrics")).Body
	if !strings.Contains(metrics, "caddy_pg_ratelimit_policy_requests_total") {
		t.Errorf("the metrics lack those of the policy: %s", metrics)
	}
	cluster.Execute(t, dsn, "CHECKPOINT")
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	use("late", http.StatusServiceUnavailable)
	search.scan("Caddy's metrics", metrics+harness.Ask(t, harness.Get(c.url+"/metrics")).Body)
	search.scan("Traefik's API", harness.Ask(t, harness.Get(tr.admin+"/api/rawdata")).Body)
	search.scanFolder("Caddy's storage", storage)
	search.scanFolder("the database's files", server.DataDir())
	search.scanLogs(c.Log(), tr.Log(), server.LogFile())
}

// secretRules makes rules for keys, and lets two keys end.
//
//go:embed testdata/secrets.sql
var secretRules string

// keysToSearch returns keys of each state, and SQL that inserts those that the database has, and rules that
// count by keys and headers.
func keysToSearch(t *testing.T) (search *secretSearch, sql string) {
	t.Helper()
	search = &secretSearch{t: t, keys: map[string]string{}}
	sql = policytest.People
	for i, what := range []string{"valid", "expired", "revoked", "unknown", "late"} {
		key, insert := policytest.NewKey(t, i+1, "alice")
		search.keys[what] = key
		if what != "unknown" {
			sql += insert
		}
	}
	unknown := search.keys["unknown"]
	search.keys["malformed"] = unknown[:8] + "zzz" + unknown[11:24]
	search.keys["mistyped"] = policy.KeyPrefix + "0000" + unknown[8:]
	search.keys["imported"] = "sk-live-51Hx8aQ2eZvKYlo2CwqB7rT9uVb3"
	search.keys["malicious"] = `'); DROP TABLE rate_limit_tiers; SELECT 4711 AS "%0a` + "\xff" + `{{.X}}\`
	imported := policy.Digest(search.keys["imported"])
	return search, sql + fmt.Sprintf(`
		INSERT INTO rate_limit_api_keys (id, digest, user_id) VALUES (9, '\x%s', 'bob');`, imported) +
		secretRules
}

// scanLogs scans the logs. postgres is the path of the database's log. The test fails if Caddy's or the
// database's log has no lines about requests with keys.
func (s *secretSearch) scanLogs(caddy, traefik, postgres string) {
	s.t.Helper()
	s.scan("Caddy's log", caddy)
	s.scan("Traefik's log", traefik)
	log, err := os.ReadFile(postgres)
	if err != nil || !strings.Contains(string(log), "rate_limit_api_keys") {
		s.t.Errorf("the log of the database: error %v, %d bytes, want statements about API keys", err,
			len(log))
	}
	s.scan("the database's log", string(log))
	for _, where := range []string{"request refused by the policy", "http.log.access", "http.log.error"} {
		if !strings.Contains(caddy, where) {
			s.t.Errorf("Caddy's log lacks %q, so this test proves nothing", where)
		}
	}
}
