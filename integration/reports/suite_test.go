package reports

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/llm"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
)

// report is a problem of another limiter, and what happens here.
type report struct {
	name   string // the number
	source string // a repository and the number of its issue, or a standard
	sites  []site
}

// site is a configuration of a proxy, for a host of its own, and the requests to it. In texts, PROXY stands
// for caddy or traefik, HOST for the site's host, ID for the site's name, which is also the prefix of its
// limit, KEY for an API key of the user ann, DSN for the database, REST for the DSN without its scheme,
// POOLER for a PgBouncer in front, AHEAD and BEHIND for servers with such a clock, FILES for the folder of
// writePassfiles, and FAKE for a schema of the site.
type site struct {
	only string // "caddy" or "traefik"; "" for both

	// The settings of the handler, of zones and of the policy, one a line, as in a Caddyfile. A zone may have
	// a prefix, and a match. Without a policy of its own, a site has none.
	handler string
	zones   []string
	policy  string

	schema        string // run in FAKE, a schema with tables of its own, before they are made; "" for none
	sql           string // run before the proxies start
	directive     string // in place of the directive of Caddy
	before, after string // further directives of Caddy, around the handler
	rule          string // a further condition of Traefik's router
	middlewares   object // further middlewares of Traefik, in front of the plugin
	inner         object // further middlewares of Traefik, behind the plugin
	service       string // one of Traefik's services; "" is upstream
	open          bool   // the site trusts no proxy in front
	socket        int    // one of the two sockets on which Caddy listens; 0 for none
	proxied       string // one of the networks whose PROXY headers the proxy takes; "" for none

	upstream http.HandlerFunc // answers "ok" if nil

	asks    []ask
	want    string // the statuses of all asks, as in "200×3 429×17"; "" if the asks have them
	refused string // the start of the error with which the configuration is refused
	rows    int    // the number of rows in the table of counters; 0 is any
	noRows  bool   // there are no rows
	seen    string // headers of the last response, see checkSeen
	check   func(v *visit)
}

// visit is what a check of a site needs. Its failures name the site.
type visit struct {
	testing.TB
	*proxy
	id  string
	got []*harness.Response // to the asks
}

// Errorf fails the test, and continues it.
func (v *visit) Errorf(format string, args ...any) {
	v.Helper()
	v.TB.Errorf("%s: "+format, append([]any{v.id}, args...)...)
}

// Await waits until a condition holds.
func (v *visit) Await(what string, f func() bool) {
	v.Helper()
	v.proxy.Await(v, v.id+": "+what, f)
}

// dial connects to the site.
func (v *visit) dial() *client { return dial(v, v.trusted, hostOf(v.id)) }

// in returns a visit that reads the tables of a schema.
func (v *visit) in(schema string) *visit {
	p := *v.proxy
	p.dsn += "&search_path=" + schema
	return &visit{v.TB, &p, v.id, v.got}
}

// fill replaces the names that a text of the site may have.
func (v *visit) fill(text string) string { return v.proxy.fill(text, v.id) }

// settings returns the settings of the handler. A site that is tried during an outage has its own.
func (s *site) settings() string {
	if strings.Contains(s.handler, "on_error") {
		return s.handler
	}
	return "timeout 30s\non_error deny\n" + s.handler
}

// ask is a request. In texts, # stands for the number of the repetition, from 1.
type ask struct {
	n       int    // the number of repetitions; 0 is 1
	line    string // the method, the path and a body; "" is GET /
	headers string // one a line; without X-Forwarded-For, the address is 203.0.113.9
	want    string // the statuses
	body    string // the body, if not ""
}

type object = harness.Object

// proxy is a proxy that serves all sites.
type proxy struct {
	*harness.Process
	name          string // caddy or traefik
	trusted, open string // addresses: behind a trusted proxy, and in front
	sockets       []string
	proxied       map[string]string // addresses that take PROXY headers, by the network that may send them
	dsn, key      string
	pooler        string                      // the DSN of a PgBouncer
	clocks        map[string]*cluster.Cluster // see startClocks
	files         string                      // the folder of writePassfiles
	loader        string                      // the admin endpoint of a Caddy that refuses configurations
	other         *proxy                      // the other of the two
}

// reports lists all reports.
var reports = slices.Concat(readReports(textOfReports), addresses, keys, responses, databases, chains,
	sockets, calendars, pooled, forgotten, protocols, priced, attempts, hidden, models, budgets, calls,
	caches, clients, clocked, held)

// The reports have the right result in both proxies.
func TestReports(t *testing.T) {
	c, upstream := startServers(t)
	caddy, traefik := startCaddy(t, c, upstream), startTraefik(t, c, upstream, harness.Traefik)
	caddy.other, traefik.other = traefik, caddy
	tryAll(t, reports, caddy, traefik)
}

// The reports about middlewares have the right result in the newest Traefik.
func TestReportsInNewestTraefik(t *testing.T) {
	defer func(all []report) { reports = all }(reports)
	reports = slices.Concat(attempts, chains) // Traefik has no other sites
	c, upstream := startServers(t)
	tryAll(t, reports, startTraefik(t, c, upstream, harness.NewestTraefik))
}

// startServers starts what proxies need, and returns the part of a proxy that they share, and the address of
// the upstream.
func startServers(t *testing.T) (proxy, string) {
	t.Helper()
	key, insert := policytest.NewKey(t, 1, "ann")
	ann := "INSERT INTO rate_limit_tiers (tier) VALUES ('free');" +
		"INSERT INTO rate_limit_users (user_id, tier) VALUES ('ann', 'free');" + insert
	dsn := openDatabase(t, key, ann)
	answers = llm.Answers(t)
	return proxy{dsn: dsn, key: key, pooler: harness.Pooler(t, dsn), clocks: startClocks(t, ann),
		files: writePassfiles(t)}, startUpstream(t)
}

// tryAll tries reports in proxies.
func tryAll(t *testing.T, reports []report, proxies ...*proxy) {
	t.Helper()
	for i := range reports {
		r := &reports[i]
		t.Run(r.name, func(t *testing.T) {
			for _, p := range proxies {
				for j := range r.sites {
					if s := &r.sites[j]; s.only == "" || s.only == p.name {
						p.try(t, s, siteID(r, j, p.name))
					}
				}
			}
		})
	}
	for _, p := range proxies {
		if i := strings.Index(p.Log(), "panic"); i >= 0 {
			t.Errorf("the log of %s has a panic: %.2000s", p.name, p.Log()[i:])
		}
	}
}

// siteID returns the name of a site in a proxy.
func siteID(r *report, site int, proxy string) string {
	return fmt.Sprintf("%s-%c-%s", strings.ToLower(r.name), 'a'+site, proxy)
}

// hostOf returns the host of a site.
func hostOf(id string) string { return id + ".test" }

// fill replaces the names that a text of a site may have.
func (p *proxy) fill(text, id string) string {
	name := id[strings.LastIndexByte(id, '-')+1:]
	return strings.NewReplacer("PROXY", name, "HOST", hostOf(id), "ID", id, "FAKE", id, "KEY", p.key,
		"DSN", p.dsn, "POOLER", p.pooler, "FILES", p.files, "AHEAD", p.clocked("AHEAD"),
		"BEHIND", p.clocked("BEHIND"), "REST", strings.TrimPrefix(p.dsn, "postgres:")).Replace(text)
}

// forEachSite calls f for each site of a proxy.
func forEachSite(proxy string, f func(s *site, id string)) {
	for i := range reports {
		for j := range reports[i].sites {
			if s := &reports[i].sites[j]; s.only == "" || s.only == proxy {
				f(s, siteID(&reports[i], j, proxy))
			}
		}
	}
}

// openDatabase creates a database with the SQL of all sites, and with that of the user ann.
func openDatabase(t *testing.T, key, ann string) string {
	t.Helper()
	dsn := policytest.Open(t, ann)
	p := &proxy{dsn: dsn, key: key}
	for _, name := range []string{"caddy", "traefik"} {
		forEachSite(name, func(s *site, id string) {
			if s.schema != "" {
				cluster.Execute(t, dsn, p.fill(`CREATE SCHEMA "FAKE"; SET search_path = "FAKE";`+s.schema,
					id)+schema.File+ann)
			}
			if s.sql != "" {
				cluster.Execute(t, dsn, p.fill(s.sql, id))
			}
		})
	}
	return dsn
}

// startUpstream starts the server behind all sites, and returns its address.
func startUpstream(t *testing.T) string {
	t.Helper()
	handlers := map[string]http.HandlerFunc{}
	for _, proxy := range []string{"caddy", "traefik"} {
		forEachSite(proxy, func(s *site, id string) { handlers[hostOf(id)] = s.upstream })
	}
	s := harness.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		if h := handlers[r.Host]; h != nil {
			h(w, r)
			return
		}
		fmt.Fprint(w, "ok")
	})
	return strings.TrimPrefix(s, "http://")
}

// mustNotBeAsked is an upstream of a site whose requests must be refused.
func mustNotBeAsked(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }

// try sends the requests of a site, and checks the result.
func (p *proxy) try(t *testing.T, s *site, id string) {
	t.Helper()
	if s.refused != "" {
		p.checkRefused(t, s, id)
		return
	}
	address := p.trusted
	if s.open {
		address = p.open
	} else if s.socket != 0 {
		address = p.sockets[s.socket-1]
	}
	if s.proxied != "" {
		address = p.proxied[s.proxied]
	}
	c := dial(t, address, hostOf(id))
	all := map[int]int{}
	var got []*harness.Response
	for _, a := range s.asks {
		counts := map[int]int{}
		for n := range max(a.n, 1) {
			number := strings.NewReplacer("#", fmt.Sprint(n+1))
			line, headers := p.fill(cmp.Or(a.line, "GET /"), id), p.fill(a.headers, id)
			response := c.ask(number.Replace(line), number.Replace(headers))
			got = append(got, response)
			if a.body != "" && !isBody(response.Body, p.fill(a.body, id)) {
				t.Errorf("%s, %.60s %q: the body is %q, want %q", id, a.line, a.headers, response.Body,
					a.body)
			}
			all[response.Status]++
			counts[response.Status]++
		}
		if text := countText(counts); a.want != "" && text != a.want {
			t.Errorf("%s, %.60s %q: %s, want %s", id, a.line, a.headers, text, a.want)
		}
	}
	if text := countText(all); s.want != "" && text != s.want {
		t.Errorf("%s: %s, want %s", id, text, s.want)
	}
	if s.rows != 0 || s.noRows {
		rows := cluster.Texts(t, p.dsn, "SELECT prefix || ' ' || key FROM rate_limit_ephemeral WHERE "+
			"prefix ~ $1 ORDER BY 1", "^(rule/)?"+id+"($|[-/])")
		if len(rows) != s.rows {
			t.Errorf("%s: the rows are %q, want %d", id, rows, s.rows)
		}
	}
	v := &visit{t, p, id, got}
	if s.seen != "" {
		v.checkSeen(s.seen)
	}
	if s.check != nil {
		s.check(v)
	}
}

// isBody reports whether a body is as wanted, where … at the end of the wanted body stands for any text.
func isBody(body, want string) bool {
	start, any := strings.CutSuffix(want, "…")
	return body == want || any && strings.HasPrefix(body, start)
}

// countText formats the counts of statuses.
func countText(counts map[int]int) string {
	return (&harness.Result{Status: counts}).String()
}
