package admin_test

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/pgratelimit/pg-ratelimit/admin/page"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/caddytest"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
)

// pageSite is a Caddyfile with a page for this machine.
const pageSite = `
	{
		pg_ratelimit {
			dsn DSN
		}
	}
	:PORT {
		@page {
			path /limits /limits/*
			remote_ip 127.0.0.1
		}
		handle @page {
			uri strip_prefix /limits
			pg_ratelimit_page
		}
	}`

// ask sends a request to the page of pageSite.
func ask(t *testing.T, c *caddytest.Caddy, method, path string, headers ...string) harness.Response {
	t.Helper()
	r := harness.Get("http://127.0.0.1:"+c.Port+"/limits"+path, headers...)
	r.Method = method
	return harness.Ask(t, r)
}

// The page has headers that keep other sites from reading or framing it. It refuses other hosts, methods
// other than GET, invalid parameters, and names that it does not serve.
func TestThePageRefusesWhatItIsNotFor(t *testing.T) {
	c := caddytest.Start(t, strings.ReplaceAll(pageSite, "DSN", cluster.Open(t)))
	a := ask(t, c, "GET", "")
	if a.Status != http.StatusPermanentRedirect || a.Header.Get("Location") != "/limits/" {
		t.Errorf("without a slash: got status %d to %q, want 308 to /limits/", a.Status,
			a.Header.Get("Location"))
	}
	a = ask(t, c, "GET", "/")
	policy := a.Header.Get("Content-Security-Policy")
	if !strings.HasPrefix(policy, "default-src 'none'") || strings.Contains(policy, "unsafe") {
		t.Errorf("the policy is %q, want default-src 'none' without unsafe sources", policy)
	}
	got := fmt.Sprint(a.Status, a.Header["Cross-Origin-Resource-Policy"], a.Header["X-Frame-Options"],
		a.Header["Access-Control-Allow-Origin"])
	if want := "200 [same-origin] [DENY] []"; got != want {
		t.Errorf("status, resource policy, frame options and allowed origin are %s, want %s", got, want)
	}
	for name, test := range map[string]struct {
		method, path, host, site, mode string
		want                           int
	}{
		"another host": {
			method: "GET", path: "/api/state", host: "evil.example", want: http.StatusMisdirectedRequest,
		},
		"localhost":        {method: "GET", path: "/api/session", host: "localhost:1", want: http.StatusOK},
		"why by POST":      {method: "POST", path: "/api/why?who=ann", want: http.StatusMethodNotAllowed},
		"a NUL in a query": {method: "GET", path: "/api/why?who=a%00b", want: http.StatusBadRequest},
		"nobody":           {method: "GET", path: "/api/why", want: http.StatusBadRequest},
		"a key":            {method: "GET", path: "/api/why?who=prl_0123456789", want: http.StatusBadRequest},
		"no such question": {method: "GET", path: "/api/ban?user=ann", want: http.StatusNotFound},
		"a file outside":   {method: "GET", path: "/guard.go", want: http.StatusNotFound},
		"no file":          {method: "GET", path: "/x.js", want: http.StatusNotFound},
		"another method":   {method: "PUT", path: "/", want: http.StatusMethodNotAllowed},
		"another site": {method: "GET", path: "/api/state", site: "cross-site",
			want: http.StatusForbidden},
		"its script": {method: "GET", path: "/script.js", site: "cross-site", mode: "no-cors",
			want: http.StatusForbidden},
		"its link": {method: "GET", path: "/", site: "cross-site", mode: "navigate", want: http.StatusOK},
		"its link to an answer": {method: "GET", path: "/api/state", site: "cross-site", mode: "navigate",
			want: http.StatusForbidden},
		"the page": {method: "GET", path: "/api/session", site: "same-origin", mode: "cors",
			want: http.StatusOK},
	} {
		a := ask(t, c, test.method, test.path, "Host", test.host, "Sec-Fetch-Site", test.site,
			"Sec-Fetch-Mode", test.mode)
		if a.Status != test.want {
			t.Errorf("%s: status %d, want %d; body %.300s", name, a.Status, test.want, a.Body)
		}
	}
}

// A host of a page with a scheme, a port, a path or a wildcard is an error that names the host.
func TestHostsOfPageAreNames(t *testing.T) {
	for _, host := range []string{"limits.example.com/page", "https://limits.example.com",
		"limits.example.com:443", "*.example.com"} {
		_, err := page.New(page.Options{DSN: "postgres://127.0.0.1/db", Hosts: []string{host}})
		want := fmt.Sprintf("hosts: %q: must be names of hosts", host)
		if !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("error %v, want %s", err, want)
		}
	}
}

// A page responds to the host names of its site, and to no other name that has a certificate, since a proxy
// may create certificates for any name.
func TestPageRespondsToNamesOfSite(t *testing.T) {
	const site = "http://limits.example.com:PORT {\n\tpg_ratelimit_page {\n\t\tdsn " +
		"postgres://127.0.0.1:1/db\n\t\tinsecure\n\t}\n}\n:PORT {\n\trespond ok\n}"
	c := caddytest.Start(t, site)
	c.Expect(http.StatusOK, "/api/session", "Host", "limits.example.com")
	s, err := page.New(page.Options{DSN: "postgres://127.0.0.1:1/db", Hosts: []string{"limits.example.com"}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for name, want := range map[string]int{"limits.example.com": http.StatusOK,
		"evil.example": http.StatusMisdirectedRequest} {
		r := httptest.NewRequest(http.MethodGet, "https://"+name+"/api/session", nil)
		r.TLS = &tls.ConnectionState{ServerName: name}
		w := httptest.NewRecorder()
		if s.ServeHTTP(w, r); w.Code != want {
			t.Errorf("%s: status %d, want %d", name, w.Code, want)
		}
	}
}

// A page loads only if each way to it has a login or is bound to networks, or with the setting insecure.
func TestUnguardedPageIsNotLoaded(t *testing.T) {
	t.Setenv("DATABASE_URL", "postgres://user@127.0.0.1:1/db")
	const guard = `basic_auth {
		ann $2a$14$Zkx19XLiW6VYouLHR5NmfOFU0z2GTNmpkT/5qqR7hx4IjWJPDhjvG
	}`
	guardedPath := strings.Replace(guard, "basic_auth", "basic_auth /limits/*", 1)
	for name, test := range map[string]struct {
		site  string
		loads bool
	}{
		"alone":                     {"pg_ratelimit_page", false},
		"insecure":                  {"pg_ratelimit_page {\ninsecure\n}", true},
		"a path is no guard":        {"handle_path /limits/* {\npg_ratelimit_page\n}", false},
		"behind a login":            {guard + "\npg_ratelimit_page", true},
		"in a route behind a login": {"handle_path /limits/* {\n" + guard + "\npg_ratelimit_page\n}", true},
		"beside a login": {"handle /other/* {\n" + guard + "\n}\nhandle {\npg_ratelimit_page\n}",
			false},
		"for a network": {"@here remote_ip 10.0.0.0/8\nhandle @here {\npg_ratelimit_page\n}",
			true},
		"for all but a network": {"@there not remote_ip 10.0.0.0/8\nhandle @there " +
			"{\npg_ratelimit_page\n}", false},
		"for a network of clients": {"@here client_ip 10.0.0.0/8\nroute @here {\npg_ratelimit_page\n}",
			true},
		"a login for another matcher": {"@a path /a\n" + strings.Replace(guard, "basic_auth", "basic_auth @a",
			1) + "\npg_ratelimit_page", false},
		"a login for the same path": {guardedPath + "\nhandle_path /api/* {\nrespond ok\n}\n" +
			"handle /limits/* {\npg_ratelimit_page\n}", true},
		"rewritten behind a login": {"route {\n" + guardedPath + "\nrewrite * /limits/\n" +
			"pg_ratelimit_page /limits/*\n}", false},
		"rewritten in a group": {"route {\n" + guardedPath + "\nhandle /x {\nrewrite /limits/\n}\n" +
			"handle /y {\n}\npg_ratelimit_page /limits/*\n}", false},
		"a login that a group skips": {"route {\nhandle /x {\n}\nhandle {\n" + guard +
			"\n}\npg_ratelimit_page\n}", false},
		"behind another server": {"forward_auth 127.0.0.1:1 {\nuri /\n}\npg_ratelimit_page", true},
	} {
		t.Run(name, func(t *testing.T) {
			c := caddytest.Start(t, ":PORT {\nrespond ok\n}")
			config, err := caddytest.Adapt(string(caddyfile.Format([]byte(":" + c.Port + " {\n" +
				test.site + "\n}"))))
			if err != nil {
				t.Fatal(err)
			}
			want := "<nil>"
			if !test.loads {
				want = "nothing in front of it keeps strangers out"
			}
			if got := fmt.Sprint(c.TryJSON(config)); !strings.Contains(got, want) {
				t.Errorf("loading: error %s, want %s", got, want)
			}
		})
	}
}

// No response contains an API key, neither one from the query nor one from a row.
func TestThePageShowsNoAPIKey(t *testing.T) {
	key, insert := policytest.NewKey(t, 7, "alice")
	dsn := policytest.Open(t, policytest.People+insert+"INSERT INTO rate_limit_bans (user_id, until, "+
		"reason) VALUES ('alice', 'infinity', 'leaked "+key+"')")
	c := caddytest.Start(t, strings.ReplaceAll(pageSite, "DSN", dsn))
	for _, query := range []string{"why?who=" + key, "why?who=" + key + "x", "bans", key} {
		body := ask(t, c, "GET", "/api/"+query).Body
		if strings.Contains(body, key[4:20]) {
			t.Errorf("%s: got %s, want no key", query, body)
		}
		if query == "bans" && !strings.Contains(body, "leaked prl_...") {
			t.Errorf("%s: got %s, want the reason with a redacted key", query, body)
		}
	}
}
