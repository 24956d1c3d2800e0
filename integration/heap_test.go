package integration

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// longRequests are the ways in which a client can send long text. Each has a path of its own, with a
// limit by this text; request makes a request from a text.
var longRequests = []struct {
	name, caddyKey, traefikKey string
	request                    func(url, text string) *http.Request
}{
	{"header", "{header.X-Key}", "{header.X-Key}", func(url, text string) *http.Request { return harness.Get(url, "X-Key", text) }},
	{"cookie", "{cookie.id}", "{cookie.id}", func(url, text string) *http.Request { return harness.Get(url, "Cookie", "id="+text) }},
	{"query", "{query.id}", "{query.id}", func(url, text string) *http.Request { return harness.Get(url + "?id=" + text) }},
	{"short", "{query.id}", "{query.id}", func(url, text string) *http.Request { return harness.Get(url + "?id=" + text[:8] + "&more=" + text) }},
	{"path", "{path}", "{path}", func(url, text string) *http.Request { return harness.Get(url + "/" + text) }},
	{"host", "{host}", "{host}", func(url, text string) *http.Request {
		r := harness.Get(url)
		r.Host = text
		return r
	}},
	{"user", "all", "all", func(url, text string) *http.Request {
		return harness.Get(url, "X-User", text[:len(text)/2], "X-Tier", text[:len(text)/2])
	}},
	{"piece", "all", "all", func(url, text string) *http.Request {
		return harness.Get(url, "Cookie", "user="+text[:8]+"; tier=t"+text[:8]+"; more="+text)
	}},
}

// policyBy are the user and the tier of requests on the paths that have a policy.
var policyBy = map[string][2]string{"user": {"{header.X-User}", "{header.X-Tier}"}, "piece": {"{cookie.user}", "{cookie.tier}"}}

var heapOf = regexp.MustCompile(`# HeapAlloc = (\d+)`)

// heapAt is how many bytes a process with pprof at a URL needs, after garbage collections: two, for
// memory that is kept for the next request.
func heapAt(t *testing.T, admin string) int64 {
	t.Helper()
	heapOnceAt(t, admin)
	heapOnceAt(t, admin)
	return heapOnceAt(t, admin)
}

// heapOnceAt is how many bytes a process uses, after a garbage collection.
func heapOnceAt(t *testing.T, admin string) int64 {
	t.Helper()
	response, err := http.Get(admin + "/debug/pprof/heap?gc=1&debug=1")
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(response.Body)
	response.Body.Close()
	if err != nil {
		t.Fatal(err)
	}
	found := heapOf.FindSubmatch(text)
	if found == nil {
		t.Fatalf("no heap profile: %.300s", text)
	}
	n, err := strconv.ParseInt(string(found[1]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestLongRequestsDoNotStayInMemory sends requests of 900 kB to proxies with a history, with the
// database up and down. What a proxy keeps of them stays small.
func TestLongRequestsDoNotStayInMemory(t *testing.T) {
	const (
		length = 900 << 10
		each   = 60       // requests of each kind
		most   = 25 << 20 // less than half of those of one kind
	)
	server := cluster.Private(t, cluster.Options{})
	dsn := server.DSN("postgres")
	execute(t, dsn, schema.File)
	execute(t, dsn, "SELECT rate_limit_rule('users', count_by => '{user,tier}', per_hour => 1000000)")
	backend := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") }))
	backend.Config.MaxHeaderBytes = 8 << 20
	backend.Start()
	t.Cleanup(backend.Close)

	var routes []route
	var handlers strings.Builder
	for _, l := range longRequests {
		settings := object{"dsn": dsn, "prefix": l.name, "key": l.traefikKey, "limit": "1000000 1h", "hashKey": false, "audit": "all"}
		governed := ""
		if by, ok := policyBy[l.name]; ok {
			settings["policy"] = object{"user": by[0], "tier": by[1]}
			governed = fmt.Sprintf("\n\t\t\tpolicy {\n\t\t\t\tuser %s\n\t\t\t\ttier %s\n\t\t\t}", by[0], by[1])
		}
		routes = append(routes, route{"/" + l.name, backend.URL, settings})
		fmt.Fprintf(&handlers, "\thandle /%s* {\n\t\tpg_ratelimit %s {\n\t\t\tkey %s\n\t\t\tlimit 1000000 1h\n\t\t\thash_key off\n\t\t\taudit all%s\n\t\t}\n\t\trespond ok\n\t}\n", l.name, l.name, l.caddyKey, governed)
	}
	tr := startTraefik(t, routes)
	address, admin := harness.FreeAddress(t), harness.FreeAddress(t)
	c := launchConfig(t, buildCaddy(t), address, fmt.Sprintf("{\n\tadmin %s\n\tauto_https off\n\tservers {\n\t\tmax_header_size 4MB\n\t}\n\tpg_ratelimit {\n\t\tdsn %q\n\t\thistory\n\t}\n}\nhttp://:%s {\n\tbind 127.0.0.1\n%s}\n", admin, dsn, address[strings.LastIndex(address, ":")+1:], handlers.String()))
	c.AwaitAddress(t, address)
	proxies := []struct{ name, url, admin string }{{"Traefik", tr.url, tr.admin}, {"Caddy", c.url, "http://" + admin}}
	send := func(at, round, n, length int) {
		t.Helper()
		p := proxies[at]
		for _, l := range longRequests {
			r := harness.Run(t.Context(), harness.Load{Clients: 8, Requests: n, Request: func(i int) *http.Request {
				return l.request(p.url+"/"+l.name, fmt.Sprintf("%07d-%s", round*1000+i, strings.Repeat("k", length)))
			}})
			if err := r.Err(); err != nil || r.Status[http.StatusOK] != n {
				t.Errorf("%s, %s: %v %v", p.name, l.name, r, err)
			}
		}
	}
	for i := range proxies {
		send(i, 0, 16, 10)
	}
	for round, state := range []string{"up", "down"} {
		if state == "down" {
			if err := server.Stop(); err != nil {
				t.Fatal(err)
			}
		}
		for i, p := range proxies {
			before := heapAt(t, p.admin)
			send(i, round+1, each, length)
			grown := heapAt(t, p.admin) - before
			t.Logf("%s, the database is %s: the heap has grown by %d MB", p.name, state, grown>>20)
			if grown > most {
				t.Errorf("%s, the database is %s: the heap has grown by %d MB", p.name, state, grown>>20)
			}
		}
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
}
