package caddymodule_test

import (
	"bufio"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/page"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

func TestThePageRefusesWhatOtherSitesSend(t *testing.T) {
	c := startPage(t, cluster.Open(t))
	status, header, _ := c.page("GET", "", "")
	if status != http.StatusPermanentRedirect || header.Get("Location") != "/limits/" {
		t.Errorf("without a slash: status %d, to %q", status, header.Get("Location"))
	}
	status, header, _ = c.page("GET", "/", "")
	if policy := header.Get("Content-Security-Policy"); status != http.StatusOK || !strings.HasPrefix(policy, "default-src 'none'") || strings.Contains(policy, "unsafe") {
		t.Errorf("status %d, policy %q", status, policy)
	}
	const body = `{"for": "1m", "by": "ann"}`
	for name, one := range map[string]struct {
		method, path, body string
		header             []string
		want               int
	}{
		"another host":          {"GET", "/api/state", "", []string{"Host", "evil.example"}, http.StatusMisdirectedRequest},
		"localhost":             {"GET", "/api/session", "", []string{"Host", "localhost:1"}, http.StatusOK},
		"another origin":        {"POST", "/api/pause", body, []string{"Origin", "http://evil.example"}, http.StatusForbidden},
		"an origin of nobody":   {"POST", "/api/pause", body, []string{"Origin", "null"}, http.StatusForbidden},
		"a script of elsewhere": {"GET", "/api/session", "", []string{"Sec-Fetch-Site", "cross-site"}, http.StatusForbidden},
		"a form":                {"POST", "/api/pause", body, []string{"Content-Type", "text/plain"}, http.StatusUnsupportedMediaType},
		"an action by GET":      {"GET", "/api/pause", "", nil, http.StatusMethodNotAllowed},
		"why by GET":            {"GET", "/api/why", "", nil, http.StatusMethodNotAllowed},
		"a list by POST":        {"POST", "/api/bans", "{}", nil, http.StatusMethodNotAllowed},
		"a NUL in a query":      {"GET", "/api/usage?user=a%00b", "", nil, http.StatusBadRequest},
		"no name":               {"POST", "/api/pause", `{"for": "1m", "confirm": "x"}`, nil, http.StatusBadRequest},
		"a name with a role":    {"POST", "/api/pause", `{"for": "1m", "by": "ann) (bob"}`, nil, http.StatusBadRequest},
		"an unknown field":      {"POST", "/api/pause", `{"fro": "1m", "by": "ann"}`, nil, http.StatusBadRequest},
		"a NUL":                 {"POST", "/api/why", `{"who": "a\u0000b"}`, nil, http.StatusBadRequest},
		"a file outside":        {"GET", "/guard.go", "", nil, http.StatusNotFound},
		"no file":               {"GET", "/x.js", "", nil, http.StatusNotFound},
		"another method":        {"PUT", "/", "", nil, http.StatusMethodNotAllowed},
	} {
		if status, _, text := c.page(one.method, one.path, one.body, one.header...); status != one.want {
			t.Errorf("%s: status %d, want %d: %.300s", name, status, one.want, text)
		}
	}
}

func TestErrorsOfThePageNameTheField(t *testing.T) {
	c := startPage(t, cluster.Open(t))
	for path, one := range map[string]struct{ body, want string }{
		"/api/pause":    {`{"for": 5, "by": "ann"}`, `"for: \"JSON number\": must be text"`},
		"/api/ban":      {`{"key_id": "x", "by": "ann"}`, `"key_id: \"JSON string\": must be a whole number"`},
		"/api/why":      {`[]`, `"the body: \"JSON array\": must be an object"`},
		"/api/unban":    {`{"usr": "ann", "by": "ann"}`, `the field \"usr\": must be one of the fields network, user, key_id, by, confirm"`},
		"/api/explain":  {`{"pth": "/"}`, `the field \"pth\": must be one of the fields user, key, key_id, tier, method, host, path, address, route, headers, at"`},
		"/api/counters": {`{"prefix": "web"}`, `"key: missing: must be the key of a counter"`},
		"/api/reset":    {`{"prefix": "web", "by": "ann"}`, `"key: missing: must be the key of a counter"`},
	} {
		if status, _, text := c.page("POST", path, one.body); status != http.StatusBadRequest || !strings.Contains(text, one.want) {
			t.Errorf("%s: status %d, want 400 and %s: %s", path, status, one.want, text)
		}
	}
	for path, want := range map[string]string{
		"/api/top?snce=2h": `the field \"snce\": must be one of the fields since, until, n"`, "/api/session?n=1": "must be left out: there are no fields here",
		"/api/bans?n=1": `the field \"n\": must be left out: there are no fields here"`,
		"/api/top?n=x":  `"n: \"x\": must be a whole number from 1 to 100"`, "/api/usage?user=%00": "NUL (%00), which is in no name",
	} {
		if status, _, text := c.page("GET", path, ""); status != http.StatusBadRequest || !strings.Contains(text, want) {
			t.Errorf("%s: status %d, want 400 and %s: %s", path, status, want, text)
		}
	}
}

func TestHostsOfThePageAreNames(t *testing.T) {
	for _, host := range []string{"limits.example.com/page", "https://limits.example.com", "limits.example.com:443", "*.example.com"} {
		_, err := page.New(page.Options{DSN: "postgres://127.0.0.1/db", Hosts: []string{host}})
		if want := fmt.Sprintf("hosts: %q: must be names of hosts", host); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// A page is for the names of its site. A name that has a certificate is not enough: a proxy may make one for any name.
func TestThePageIsForTheNamesOfItsSite(t *testing.T) {
	const site = "http://limits.example.com:PORT {\n\tpg_ratelimit_page {\n\t\tdsn postgres://127.0.0.1:1/db\n\t\tinsecure\n\t}\n}\n:PORT {\n\trespond ok\n}"
	c := &pageClient{start(t, site)}
	c.expect(http.StatusOK, "/api/session", "Host", "limits.example.com")
	s, err := page.New(page.Options{DSN: "postgres://127.0.0.1:1/db", Hosts: []string{"limits.example.com"}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for name, want := range map[string]int{"limits.example.com": http.StatusOK, "evil.example": http.StatusMisdirectedRequest} {
		r := httptest.NewRequest(http.MethodGet, "https://"+name+"/api/session", nil)
		r.TLS = &tls.ConnectionState{ServerName: name}
		w := httptest.NewRecorder()
		if s.ServeHTTP(w, r); w.Code != want {
			t.Errorf("%s: status %d, want %d", name, w.Code, want)
		}
	}
}

// The second request of an action, sent again by a person or a browser, changes nothing more.
func TestAConfirmationHoldsOnce(t *testing.T) {
	dsn := withPolicy(t, people+`SELECT rate_limit_rule('plan', tiers => '{pro}', per_hour => 1000);`)
	c := startPage(t, dsn)
	body := map[string]any{"user": "bob", "rule": "plan", "percent": 10, "until": "1h", "by": "ann"}
	var plan planOfPage
	c.post("override", body, &plan)
	body["confirm"] = plan.Confirm
	var did doneOfPage
	c.post("override", body, &did)
	text, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	if status, _, answer := c.page("POST", "/api/override", string(text)); status != http.StatusConflict || !strings.Contains(answer, "was used") {
		t.Errorf("again: status %d: %s", status, answer)
	}
	if n := cluster.Query[int](t, dsn, "SELECT max(events) FROM rate_limit_overrides"); n != 1100 {
		t.Errorf("the override is %d, want 1100", n)
	}
}

// Clients that send no body do not keep others from asking: these are answered while the server waits for the bodies.
func TestBodiesThatNeverComeHoldNobodyUp(t *testing.T) {
	c := startPage(t, withPolicy(t, people))
	waits := false
	for round := 0; round < 5 && !waits; round++ { // a round in which the server gives up says nothing
		var answers []chan string
		for range 8 {
			answers = append(answers, c.postWithoutBody("explain"))
		}
		for _, answer := range answers {
			if line := <-answer; line != "HTTP/1.1 100 Continue" { // the server waits for the body
				t.Errorf("the server does not wait for a body: %s", line)
			}
		}
		var e struct{ Tier string }
		if c.post("explain", map[string]any{"user": "alice"}, &e); e.Tier != "free" {
			t.Errorf("the answer is %+v", e)
		}
		waits = true
		for _, answer := range answers {
			waits = waits && len(answer) == 0
		}
	}
	if !waits {
		t.Error("others are answered after the server has given up waiting for bodies")
	}
	if status, _, text := c.page("POST", "/api/explain", `{"user": "`+strings.Repeat("a", 1<<16)+`"}`); status != http.StatusRequestEntityTooLarge {
		t.Errorf("a long body: status %d: %s", status, text)
	}
}

// postWithoutBody begins a POST whose body never comes. The channel gets the lines that tell how the server answers: that
// it waits for the body, and that it has given up.
func (c *pageClient) postWithoutBody(name string) chan string {
	c.t.Helper()
	conn, err := net.Dial("tcp", "127.0.0.1:"+c.port)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = conn.Close() })
	_, err = fmt.Fprintf(conn, "POST /limits/api/%s HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 100\r\nExpect: 100-continue\r\n\r\n", name)
	if err != nil {
		c.t.Fatal(err)
	}
	answers := make(chan string, 3)
	go func() {
		for lines := bufio.NewScanner(conn); lines.Scan(); {
			if strings.HasPrefix(lines.Text(), "HTTP/") {
				answers <- lines.Text()
			}
		}
		answers <- "the end"
	}()
	return answers
}

// A page that has never reached its database says so, and does not say that there is nothing.
func TestThePageKnowsNothingWithoutADatabase(t *testing.T) {
	c := &pageClient{start(t, "{\n\tpg_ratelimit {\n\t\tdsn postgres://user:secret@127.0.0.1:1/db\n\t}\n}\n:PORT {\n\thandle_path /limits/* {\n\t\tpg_ratelimit_page {\n\t\t\tinsecure\n\t\t}\n\t}\n}")}
	var state map[string]any
	c.get("state", &state)
	if len(state) != 1 || state["banner"].(map[string]any)["mode"] != "database_down" {
		t.Errorf("the state: %v", state)
	}
	for _, one := range []struct{ method, path, body string }{
		{"GET", "proxies", ""}, {"GET", "limits", ""}, {"GET", "near", ""}, {"GET", "bans", ""}, {"GET", "changes", ""}, {"GET", "top", ""}, {"GET", "names?kind=user", ""}, {"GET", "usage?user=ann", ""},
		{"POST", "why", `{"who": "ann"}`}, {"POST", "explain", `{"user": "ann"}`}, {"POST", "counters", `{"prefix": "p", "key": "k"}`},
	} {
		status, _, text := c.page(one.method, "/api/"+one.path, one.body)
		if status != http.StatusServiceUnavailable || !strings.Contains(text, "the database does not answer") || strings.Contains(text, "secret") {
			t.Errorf("%s: status %d: %s", one.path, status, text)
		}
	}
}

func TestAPageThatStrangersReachIsNotLoaded(t *testing.T) {
	t.Setenv("DATABASE_URL", "postgres://user@127.0.0.1:1/db")
	const guard = `basic_auth {
		ann $2a$14$Zkx19XLiW6VYouLHR5NmfOFU0z2GTNmpkT/5qqR7hx4IjWJPDhjvG
	}`
	for name, one := range map[string]struct {
		site string
		want bool
	}{
		"alone":                       {"pg_ratelimit_page", false},
		"insecure":                    {"pg_ratelimit_page {\ninsecure\n}", true},
		"a path is no guard":          {"handle_path /limits/* {\npg_ratelimit_page\n}", false},
		"behind a login":              {guard + "\npg_ratelimit_page", true},
		"in a route behind a login":   {"handle_path /limits/* {\n" + guard + "\npg_ratelimit_page\n}", true},
		"beside a login":              {"handle /other/* {\n" + guard + "\n}\nhandle {\npg_ratelimit_page\n}", false},
		"for a network":               {"@here remote_ip 10.0.0.0/8\nhandle @here {\npg_ratelimit_page\n}", true},
		"for all but a network":       {"@there not remote_ip 10.0.0.0/8\nhandle @there {\npg_ratelimit_page\n}", false},
		"for a network of clients":    {"@here client_ip 10.0.0.0/8\nroute @here {\npg_ratelimit_page\n}", true},
		"a login for another matcher": {"@a path /a\n" + strings.Replace(guard, "basic_auth", "basic_auth @a", 1) + "\npg_ratelimit_page", false},
		"a login for the same path":   {strings.Replace(guard, "basic_auth", "basic_auth /limits/*", 1) + "\nhandle_path /api/* {\nrespond ok\n}\nhandle /limits/* {\npg_ratelimit_page\n}", true},
		"rewritten behind a login":    {"route {\n" + strings.Replace(guard, "basic_auth", "basic_auth /limits/*", 1) + "\nrewrite * /limits/\npg_ratelimit_page /limits/*\n}", false},
		"behind another server":       {"forward_auth 127.0.0.1:1 {\nuri /\n}\npg_ratelimit_page", true},
	} {
		t.Run(name, func(t *testing.T) {
			c := start(t, ":PORT {\nrespond ok\n}")
			config, err := adapt(string(caddyfile.Format([]byte(":" + c.port + " {\n" + one.site + "\n}"))))
			if err != nil {
				t.Fatal(err)
			}
			var whole map[string]any
			if err := json.Unmarshal(config, &whole); err != nil {
				t.Fatal(err)
			}
			whole["admin"] = map[string]any{"disabled": true, "config": map[string]any{"persist": false}}
			if config, err = json.Marshal(whole); err != nil {
				t.Fatal(err)
			}
			if err := caddy.Load(config, true); (err == nil) != one.want || err != nil && !strings.Contains(err.Error(), "nothing in front of it keeps strangers out") {
				t.Errorf("loading: %v", err)
			}
		})
	}
}

// An API key that a person asks about is in no answer.
func TestThePageShowsNoAPIKey(t *testing.T) {
	key, insert := insertKey(t, 7, "alice")
	c := startPage(t, withPolicy(t, people+insert))
	for name, body := range map[string]map[string]any{
		"why": {"who": key}, "explain": {"key": key}, "an unknown key": {"who": key + "x"}, "a user with the name of a key": {"who": key, "kind": "user"},
		"a ban": {"user": key, "by": "ann"}, "an unknown field": {key: 1}, "a rule": {"user": "alice", "rule": key, "percent": 1, "by": "ann"},
	} {
		text, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		path := map[string]string{"explain": "explain", "a ban": "ban", "a rule": "override"}[name]
		if path == "" {
			path = "why"
		}
		_, _, answer := c.page("POST", "/api/"+path, string(text))
		if strings.Contains(answer, key) || strings.Contains(answer, key[4:20]) {
			t.Errorf("%s: %s", name, answer)
		}
		if name == "why" && (!strings.Contains(answer, `"kind":"key"`) || !strings.Contains(answer, `"tier":"free"`)) {
			t.Errorf("%s: %s", name, answer)
		}
	}
}
