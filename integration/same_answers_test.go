package integration

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/seed"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// handled serves each configuration below its path.
func handled(t *testing.T, all map[string]http.Handler) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		all["/"+strings.SplitN(r.URL.Path, "/", 3)[1]+"/"].ServeHTTP(w, r)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// TestTheProxiesAnswerTheSame: random requests to random configurations get the same answers from Caddy, the interpreted plugin and
// httplimit, and leave the same rows. What differs is in docs/traefik.md: "Differences". Leases, waits and refusals without the
// database are left out: their answers depend on the time.
func TestTheProxiesAnswerTheSame(t *testing.T) {
	t.Parallel()
	configurations, requests := 40, 300
	if testing.Short() {
		configurations, requests = 8, 40
	}
	number := seed.Of(t)
	random := rand.New(rand.NewPCG(number, 1))
	key, insert := newKey(t, 7, "alice")
	revoked, insertRevoked := newKey(t, 8, "bob")
	sql := people + insert + insertRevoked + "UPDATE rate_limit_api_keys SET revoked_at = now() WHERE id = 8; INSERT INTO rate_limit_bans (user_id) VALUES ('mallory');"
	var all []*madeUp
	for n := range configurations {
		all = append(all, makeUp(random, n))
		sql += rulesOf(fmt.Sprintf("/c%d/", n))
	}
	var sent []*madeUpRequest
	for range requests {
		sent = append(sent, makeUpRequest(random, []string{"Bearer " + key, revoked, "unknown"}))
	}
	upstream := behindAll(t)
	dsns := []string{policyDatabase(t, sql), policyDatabase(t, sql), cluster.Open(t)}
	names := []string{"Caddy", "the plugin", "httplimit"}

	var routes []route
	p := loadPlugin(t)
	store := openStore(t, dsns[2], postgres.Options{DisableInMemoryBlock: true})
	middlewares, program := map[string]http.Handler{}, map[string]http.Handler{}
	for n, c := range all {
		path := fmt.Sprintf("/c%d/", n)
		behind := httputil.NewSingleHostReverseProxy(upstream)
		limit := c.limit(path)
		routes = append(routes, route{path, upstream.String(), maps.Clone(limit)})
		limit["dsn"] = dsns[1]
		middlewares[path] = p.mustHandler(t, behind, limit)
		if c.inGo {
			program[path] = c.inProgram(t, store)(behind)
		}
	}
	address := harness.FreeAddress(t)
	config := harness.Replace(t, caddyfile(address, dsns[0], routes), "dsn ", "in_memory_block off\n\t\tdsn ")
	caddy := launchConfig(t, buildCaddy(t), address, config)
	caddy.AwaitAddress(t, address)
	urls := []string{caddy.url, handled(t, middlewares), handled(t, program)}
	for _, dsn := range dsns[:2] {
		awaitObeyed(t, dsn, 1)
	}

	var wait sync.WaitGroup
	var statuses sync.Map
	for n, c := range all {
		wait.Go(func() { c.ask(t, n, sent, names, urls, &statuses) })
	}
	wait.Wait()
	for _, status := range []int{200, 400, 401, 402, 403, 404, 429} {
		if _, seen := statuses.Load(status); !seen && !testing.Short() {
			t.Errorf("no answer has status %d", status)
		}
	}
	if t.Failed() {
		return
	}
	// differ are the rows of two databases that are in one of them alone.
	differ := func(one, two, prefixes string) (alone []string) {
		for _, pair := range [][]string{{one, two}, {two, one}} {
			others := rowsIn(t, pair[1], prefixes)
			for _, row := range rowsIn(t, pair[0], prefixes) {
				if !slices.Contains(others, row) {
					alone = append(alone, row)
				}
			}
		}
		return alone
	}
	var alone []string
	for until := time.Now().Add(patience); ; time.Sleep(time.Second) { // requests are settled in the background
		if alone = differ(dsns[0], dsns[1], "^c|^rule"); len(alone) == 0 || time.Now().After(until) {
			break
		}
	}
	if len(alone) > 0 || len(rowsIn(t, dsns[0], "^c|^rule")) < configurations {
		t.Errorf("rows of one proxy alone:\n%s", strings.Join(alone, "\n"))
	}
	if alone := differ(dsns[0], dsns[2], "^c[0-9]*[02468]-"); len(alone) > 0 {
		t.Errorf("rows of Caddy or of httplimit alone:\n%s", strings.Join(alone, "\n"))
	}
}

// rowsIn are the counters of the prefixes in a database, with what is counted in windows.
func rowsIn(t *testing.T, dsn, prefixes string) (all []string) {
	t.Helper()
	for _, table := range []string{"rate_limit_ephemeral", "rate_limit_durable"} {
		all = append(all, queryLines(t, dsn, fmt.Sprintf("SELECT concat_ws(' ', prefix, key, CASE WHEN prefix LIKE '%%_window' THEN count END) FROM %s WHERE prefix ~ '%s'", table, prefixes))...)
	}
	return all
}

// ask sends all requests to one configuration in each proxy, and compares the answers. It adds their statuses.
func (c *madeUp) ask(t *testing.T, n int, sent []*madeUpRequest, names, urls []string, statuses *sync.Map) {
	client := &http.Client{Transport: &http.Transport{}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer client.CloseIdleConnections()
	if !c.inGo {
		names = names[:2]
	}
	matches := slices.ContainsFunc(c.zones, func(z edge.Values) bool { return z["match"] != "" })
	wrong := 0
	for i, q := range sent {
		if c.inGo && strings.Contains(q.path, "limited") || matches && strings.ContainsAny(q.path, "FB") {
			continue // httplimit leaves the headers of an upstream as they are, and to matchers of Caddy %2F is a slash and B is b
		}
		answers := make([]string, len(names))
		for at := range names {
			request, err := http.NewRequest(q.method, fmt.Sprintf("%s/c%d/%s", urls[at], n, q.path), nil)
			if err != nil {
				t.Error(err)
				return
			}
			for j := 0; j < len(q.headers); j += 2 {
				request.Header.Add(q.headers[j], q.headers[j+1])
			}
			request.Host = q.host
			answer, err := harness.AskBy(client, request)
			if err != nil {
				t.Errorf("%s: %v", names[at], err)
				return
			}
			answers[at] = c.shown(answer)
			statuses.Store(answer.Status, true)
		}
		for at := range answers {
			if answers[at] != answers[0] {
				t.Errorf("configuration %d, request %d %+v:\n%s answers %s\n%s answers %s\n%s", n, i, *q, names[0], answers[0], names[at], answers[at], directive(c.limit(fmt.Sprintf("/c%d/", n))))
				if wrong++; wrong == 3 {
					return
				}
			}
		}
	}
}
