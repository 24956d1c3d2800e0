package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

const problemJSON = "application/problem+json"

// problemOf is what a problem says: its type without the beginning, title, status, detail and policies.
func problemOf(t *testing.T, a harness.Answer) string {
	t.Helper()
	var p map[string]any
	if err := json.Unmarshal([]byte(a.Body), &p); err != nil {
		t.Fatalf("%v: %s", err, a.Body)
	}
	if p["status"] != float64(a.Status) {
		t.Errorf("status %d: %s", a.Status, a.Body)
	}
	return fmt.Sprint(p["type"], "; ", p["title"], "; ", p["detail"], "; ", p["violated-policies"])
}

// TestRefusalsAreProblemsForClientsThatPreferThem in both proxies, with the status, Retry-After and the fields of other
// clients.
func TestRefusalsAreProblemsForClientsThatPreferThem(t *testing.T) {
	t.Parallel()
	const exceeded = "https://iana.org/assignments/http-problem-types#quota-exceeded; Quota Exceeded; "
	dsn := policyDatabase(t, `SELECT rate_limit_rule('slow', count_by => '{all}', paths => '{/slow}', per_hour => 1, status => 402, message => 'Pay "more"');
		SELECT rate_limit_rule('none', count_by => '{all}', paths => '{/none}', per_hour => 0);
		SELECT rate_limit_rule('shut', action => 'block', paths => '{/shut}', status => 404)`)
	for name, fields := range map[string]string{"plain": "x", "ietf": "ietf"} {
		prefix := name + " 100% é"
		for proxy, url := range bothProxies(t, dsn, startBackend(t), fmt.Sprintf("fields %s\npolicy\nzone \"%s\" {\n\tlimit 1 1h\n\tkey caddy{header.X-Key}\n}\nzone other {\n\tlimit 1000 1h\n}", fields, prefix),
			object{"fields": fields, "policy": object{"tier": "anonymous"}, "zones": []object{{"prefix": prefix, "limit": "1 1h", "key": "traefik{header.X-Key}"}, {"prefix": "other", "limit": "1000 1h"}}}) {
			ask := func(path, key, accept string) harness.Answer {
				return harness.Ask(t, harness.Get(url+path, "Accept", accept, "X-Key", key+name))
			}
			if a := ask("/", "a", problemJSON); a.Status != http.StatusOK {
				t.Fatalf("%s: %d", proxy, a.Status)
			}
			for accept, want := range map[string]string{
				"": "application/json", "*/*": "application/json", "application/json": "application/json", "application/json, " + problemJSON: "application/json",
				problemJSON: problemJSON, problemJSON + ", */*;q=0.8": problemJSON, "application/*, application/json;q=0.5": problemJSON, problemJSON + ";q=0": "application/json",
			} {
				a := ask("/", "a", accept)
				if got := a.Header.Get("Content-Type"); a.Status != http.StatusTooManyRequests || got != want || a.Header.Get("Retry-After") == "" || a.Header.Get("Content-Length") != fmt.Sprint(len(a.Body)) {
					t.Errorf("%s, Accept %q: %d %v", proxy, accept, a.Status, a.Header)
				}
				if want != problemJSON {
					continue
				}
				if got, want := problemOf(t, a), exceeded+"Too many requests; ["+name+" 100%25 %C3%A9]"; got != want {
					t.Errorf("%s: %s, want %s", proxy, got, want)
				}
				if fields == "ietf" {
					if got := members(t, a.Header, "RateLimit-Policy")[0].name; got != name+" 100%25 %C3%A9" {
						t.Errorf("%s: the policy is %s", proxy, got)
					}
				} else if got := a.Header.Get("X-RateLimit-Limit") + a.Header.Get("X-RateLimit-Remaining"); got != "10" {
					t.Errorf("%s: %v", proxy, a.Header)
				}
			}
			_ = ask("/slow", "b", problemJSON) // of the first proxy it passes
			for path, want := range map[string]string{
				"/slow": exceeded + `Pay "more"; [rule/slow/per_hour]`, "/none": exceeded + "Too many requests; [rule/none/per_hour]", "/shut": "<nil>; Not Found; Forbidden; <nil>",
			} {
				a := ask(path, "c"+path, problemJSON)
				if got := problemOf(t, a); got != want || a.Header.Get("Content-Type") != problemJSON {
					t.Errorf("%s, %s: %d %s, want %s", proxy, path, a.Status, got, want)
				}
				if a.Status != http.StatusTooManyRequests && a.Header.Get("Vary") != "Accept" {
					t.Errorf("%s, %s: Vary is %q", proxy, path, a.Header.Values("Vary"))
				}
			}
		}
	}
}

// TestAnOutageIsAProblemForClientsThatPreferThem in both proxies.
func TestAnOutageIsAProblemForClientsThatPreferThem(t *testing.T) {
	t.Parallel()
	server := cluster.Private(t, cluster.Options{})
	dsn := server.DSN("postgres")
	urls := bothProxies(t, dsn, startBackend(t), "prefix caddy\nlimit 10 1h", object{"prefix": "traefik", "limit": "10 1h"})
	for proxy, url := range urls {
		if got := answersTo(t, 1, url); got != "200" {
			t.Fatalf("%s answers %s", proxy, got)
		}
	}
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	for proxy, url := range urls {
		a := harness.Ask(t, harness.Get(url, "Accept", problemJSON))
		const want = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity; Temporary Reduced Capacity; Service unavailable; []"
		if got := problemOf(t, a); a.Status != http.StatusServiceUnavailable || got != want || a.Header.Get("Content-Type") != problemJSON {
			t.Errorf("%s: %d %s", proxy, a.Status, got)
		}
		if a := harness.Ask(t, harness.Get(url)); a.Body != `{"error":"Service unavailable"}` {
			t.Errorf("%s: %s", proxy, a.Body)
		}
	}
}
