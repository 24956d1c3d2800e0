package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// pageQuestions are the questions and actions of the page, with the names in their queries or bodies.
var pageQuestions = []struct {
	name   string
	fields []string
}{
	{"session", nil}, {"state", nil}, {"proxies", nil}, {"limits", nil}, {"near", nil}, {"bans", nil}, {"top", []string{"since", "until", "n"}}, {"changes", []string{"since", "until", "n"}}, {"usage", []string{"user", "month"}},
	{"names", []string{"kind", "begins"}}, {"why", []string{"who", "kind", "at", "method", "host", "path", "address"}}, {"explain", []string{"user", "key", "key_id", "tier", "method", "host", "path", "address", "route", "headers", "at"}},
	{"counters", []string{"prefix", "key"}}, {"pause", []string{"for", "reason"}}, {"resume", nil}, {"ban", []string{"network", "user", "key_id", "for", "reason"}}, {"unban", []string{"network", "user", "key_id"}},
	{"override", []string{"user", "key_id", "rule", "limit", "percent", "events", "until", "reason"}}, {"unoverride", []string{"user", "key_id", "rule", "limit"}}, {"undo", []string{"change"}}, {"reset", []string{"prefix", "key"}}, {"nothing", nil},
}

// pageValues are values that mean something to a question, beside any text.
var pageValues = []any{
	"ann", "free", "user", "key", "counter", "key_id", "#1", "1h", "7d", "2w", "never", "2026-11", "0000-01", "9999-12", "9999-12-31T23:59:59-12:00", "14:05", "192.0.2.1", "192.0.2.0/24", "0.0.0.0/0", "::1", "fe80::1%eth0", "page", "per_hour", "GET", "/",
	"5", "0", "-1", "36525d2562047h", "a\x00b", "\xff", "%", "_", "\\", 1, 0, -1, 1.5, 1e300, int64(1) << 53, true, nil, []int{1}, []any{}, map[string]any{"X-Tenant": "a", "": "b"},
}

func (by attacker) value() any {
	if by.IntN(3) == 0 {
		return by.text()
	}
	return pageValues[by.IntN(len(pageValues))]
}

// pageRequest is a request to a page. It is foreign if it is as another site would have it sent.
func (by attacker) pageRequest(address string) (r *http.Request, body map[string]any, foreign bool) {
	question := pageQuestions[by.IntN(len(pageQuestions))]
	path := "/api/" + question.name
	if by.IntN(8) == 0 {
		path = []string{"/", "/metrics", "/index.html", "/page.js", "/..%2fguard.go", "/static/", "/api/", "/api//state", "/api/%00", "//evil.example/", "/" + url.PathEscape(by.text())}[by.IntN(11)]
	}
	method := []string{"GET", "GET", "POST", "POST", "POST", "HEAD", "PUT", "OPTIONS", "DELETE"}[by.IntN(9)]
	body, query := map[string]any{}, url.Values{}
	for _, name := range question.fields {
		if by.IntN(3) > 0 {
			body[name] = by.value()
			query.Set(name, fmt.Sprint(by.value()))
		}
	}
	for _, name := range []string{"by", "confirm", "other"} {
		if by.IntN(4) == 0 {
			body[name] = by.value()
		}
	}
	if by.IntN(4) > 0 {
		body["by"] = "eve"
	}
	text, _ := json.Marshal(body) // of values that JSON has
	if by.IntN(10) == 0 {
		text = text[:by.IntN(len(text))]
	}
	if by.IntN(100) == 0 {
		text = []byte(strings.Repeat("[", 1<<15+by.IntN(1<<16)))
	}
	if method != http.MethodPost {
		text = nil
	}
	r, err := http.NewRequest(method, address+path+"?"+query.Encode(), strings.NewReader(string(text)))
	if err != nil {
		panic(err)
	}
	header := func(name string, good string, bad ...string) {
		switch by.IntN(10) {
		case 0:
			r.Header.Set(name, bad[by.IntN(len(bad))])
			foreign = foreign || name != "Content-Type"
		default:
			r.Header.Set(name, good)
		}
	}
	header("Content-Type", "application/json", "text/plain", "application/x-www-form-urlencoded", "application/json;x", "\t")
	switch by.IntN(4) { // browsers of today say the site, and older ones the origin
	case 0:
		header("Origin", address, "http://evil.example", "null", address+".evil.example", "http://127.0.0.1:1", "//", "%")
	case 1:
		header("Sec-Fetch-Site", "same-origin", "cross-site", "same-site", "x")
	}
	if by.IntN(10) == 0 {
		r.Host = []string{"evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "a@127.0.0.1", "1"}[by.IntN(5)]
		foreign = true
	}
	if by.IntN(4) == 0 {
		r.Header.Add("If-None-Match", by.text())
		r.Header.Add("X-Forwarded-Host", by.host())
	}
	return r, body, foreign
}

var pageKeys = regexp.MustCompile(`prl_[0-9A-Za-z]{20}`)

// wrongOfPage says what is wrong with an answer of a page, or "".
func wrongOfPage(r *http.Request, answer *harness.Answer, foreign bool, secrets ...string) string {
	text := fmt.Sprintf("%s %s %.300s %v: %d %v %.300q", r.Method, r.Host, r.URL, r.Header, answer.Status, answer.Header, answer.Body)
	documented := []int{http.StatusOK, http.StatusNotModified, http.StatusBadRequest, http.StatusForbidden, http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusConflict, http.StatusRequestEntityTooLarge,
		http.StatusUnsupportedMediaType, http.StatusMisdirectedRequest, http.StatusUnprocessableEntity}
	if !slices.Contains(documented, answer.Status) || foreign && answer.Status < 400 {
		return text
	}
	header := answer.Header
	if answer.Status == http.StatusBadRequest && header.Get("Content-Type") != "application/json" {
		return "" // of net/http, for a host that is none
	}
	if !strings.HasPrefix(header.Get("Content-Security-Policy"), "default-src 'none'") || header.Get("X-Content-Type-Options") != "nosniff" || header.Get("Access-Control-Allow-Origin") != "" {
		return "headers: " + text
	}
	isAPI := strings.HasPrefix(r.URL.Path, "/api/")
	if r.Method != http.MethodHead && (isAPI || answer.Status >= 400) {
		var fields map[string]any
		if err := json.Unmarshal([]byte(answer.Body), &fields); err != nil || answer.Status >= 400 && fields["error"] == "" {
			return "JSON: " + text
		}
	}
	for _, secret := range secrets {
		if strings.Contains(answer.Body, secret) {
			return "a secret: " + text
		}
	}
	if pageKeys.MatchString(answer.Body) {
		return "an API key: " + text
	}
	return ""
}

// TestAttackersOfThePage choose every header, parameter and body of requests to the page, in a site and as a command. The answers
// are those that the documentation names; a request that another site sends changes and shows nothing.
func TestAttackersOfThePage(t *testing.T) {
	key, insert := newKey(t, 1, "ann")
	dsn := policyDatabase(t, `INSERT INTO rate_limit_tiers (tier) VALUES ('free'); INSERT INTO rate_limit_users (user_id, tier) VALUES ('ann', 'free');`+insert+`
		SELECT rate_limit_rule('page', tiers => '{free}', per_hour => 5)`)
	const password = "hunter2hunter2"
	dsn = strings.Replace(dsn, "postgres@", "postgres:"+password+"@", 1) // which the server does not ask for
	address, site := harness.FreeAddress(t), harness.FreeAddress(t)
	c := launchConfig(t, buildCaddy(t), site, fmt.Sprintf(`{
	admin off
	auto_https off
	log {
		output stderr
		format json
	}
	pg_ratelimit {
		dsn %q
		history
	}
}
http://:%s {
	bind 127.0.0.1
	handle /limited {
		pg_ratelimit page {
			policy {
				api_key {header.X-Api-Key}
			}
			limit 5 1h
			audit all
		}
		respond ok
	}
	pg_ratelimit_page {
		write
		insecure
	}
}
`, dsn, site[strings.LastIndex(site, ":")+1:]))
	command := harness.Start(t, harness.Program{Name: "the page", Path: buildCaddy(t), Dir: t.TempDir(), Args: []string{"pg-ratelimit", "page", "--listen", address, "--write"}, Env: []string{"DATABASE_URL=" + dsn}})
	c.AwaitAddress(t, site)
	command.AwaitAddress(t, address)
	harness.Ask(t, harness.Get(c.url+"/limited", "X-Api-Key", key))
	for _, p := range []struct {
		name, url string
		log       func() string
	}{{"a site", c.url, c.Log}, {"the command", "http://" + address, command.Log}} {
		a := newAttack(t, http.StatusOK, http.StatusBadRequest, http.StatusForbidden, http.StatusNotFound, http.StatusMisdirectedRequest)
		a.run(8, *attackFor, func(by attacker, client *http.Client) (int, string) {
			r, body, foreign := by.pageRequest(p.url)
			answer, err := harness.AskBy(client, r)
			if err != nil {
				return 0, fmt.Sprintf("%s %.100s: %v", r.Method, r.URL, err)
			}
			wrong := wrongOfPage(r, &answer, foreign, password, key)
			var plan struct{ Confirm string }
			if json.Unmarshal([]byte(answer.Body), &plan) == nil && plan.Confirm != "" && wrong == "" && by.IntN(2) == 0 { // else nobody confirms it
				body["confirm"] = plan.Confirm
				again, _ := json.Marshal(body)
				second, _ := http.NewRequest(http.MethodPost, p.url+r.URL.Path, strings.NewReader(string(again)))
				second.Header = r.Header
				if answer, err = harness.AskBy(client, second); err != nil {
					return 0, err.Error()
				}
				wrong = wrongOfPage(second, &answer, false, password, key)
			}
			return answer.Status, wrong
		})
		a.check(t, p.name)
		if answer := harness.Ask(t, harness.Get(p.url+"/api/state")); answer.Status != http.StatusOK {
			t.Errorf("%s answers %d after the attack: %s", p.name, answer.Status, answer.Body)
		}
		checkNoPanic(t, p.name, p.log())
	}
	if n := cluster.Query[int64](t, dsn, "SELECT count(*) FROM rate_limit_changes WHERE by NOT LIKE '%(%)' AND at > (SELECT min(at) FROM rate_limit_changes WHERE by LIKE '%(%)')"); n > 0 {
		t.Errorf("%d changes name nobody", n)
	}
	if n := cluster.Query[int64](t, dsn, "SELECT count(*) FROM rate_limit_rules"); n != 1 {
		t.Errorf("%d rules, want 1", n)
	}
}
