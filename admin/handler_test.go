package admin_test

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/pgratelimit/pg-ratelimit/admin/page"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/caddytest"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
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
	golden.ReplayLines(t, "testdata/requests.txt", func(t *testing.T, method, text string) string {
		words, headers := strings.Fields(text), []string(nil)
		for _, word := range words[1:] {
			name, value, _ := strings.Cut(word, ":")
			headers = append(headers, name, value)
		}
		return strconv.Itoa(ask(t, c, method, words[0], headers...).Status)
	})
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
	guard := regexp.MustCompile("GUARD(.*)")
	const login = "basic_auth$1 {\nann $$2a$$14$$Zkx19XLiW6VYouLHR5NmfOFU0z2GTNmpkT/5qqR7hx4IjWJPDhjvG\n}"
	c := caddytest.Start(t, ":PORT {\nrespond ok\n}")
	golden.ReplayLines(t, "testdata/unguarded.txt", func(t *testing.T, _, site string) string {
		site = ":" + c.Port + " {\n" + guard.ReplaceAllString(site, login) + "\n}"
		config, err := caddytest.Adapt(string(caddyfile.Format([]byte(site))))
		if err != nil {
			t.Fatal(err)
		}
		if err = c.TryJSON(config); err == nil {
			return "loads"
		}
		return regexp.MustCompile("nothing in front of it keeps strangers out").FindString(err.Error())
	})
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
