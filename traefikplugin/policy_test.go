package traefikplugin

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// withPolicy returns a database that has the tables of the policy, and rows of sql.
func withPolicy(t *testing.T, sql string) (dsn string) {
	t.Helper()
	dsn = cluster.Open(t, schema.Counters+schema.Policy)
	cluster.Execute(t, dsn, sql)
	return dsn
}

const people = `
	INSERT INTO rate_limit_tiers (tier) VALUES ('free'), ('pro');
	INSERT INTO rate_limit_users (user_id, tier) VALUES ('alice', 'free'), ('bob', 'pro'),
		(E'line\nbreak', 'free');`

// governed returns a middleware with a policy alone, unless edit adds limits. The upstream
// answers with the headers of the request that the proxy sets.
func governed(t *testing.T, dsn string, edit func(c *Config)) http.Handler {
	t.Helper()
	c := CreateConfig()
	c.Other["dsn"], c.Other["timeout"], c.Other["onError"] = dsn, "10s", "deny"
	c.Policy = []Settings{{"apiKey": "{header.Authorization}", "user": "{header.X-User}",
		"forwardHeaders": "true"}}
	edit(c)
	next := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		told := []string{}
		for name, values := range r.Header {
			if strings.HasPrefix(strings.ToLower(strings.ReplaceAll(name, "_", "-")), "x-ratelimit") {
				told = append(told, name+"="+strings.Join(values, ","))
			}
		}
		fmt.Fprintf(w, "%s|%s|%s|%s|%d", r.Header.Get("X-RateLimit-User"), r.Header.Get("X-RateLimit-Tier"),
			r.Header.Get("X-RateLimit-Key-Id"), r.Header.Get("X-RateLimit-Rule"), len(told))
	})
	return open(t, t.Context(), newProcess(time.Millisecond), next, c)
}

// send sends a request, with headers given as name and value in turn.
func send(h http.Handler, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header[headers[i]] = []string{headers[i+1]}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// newKey returns an API key, and SQL that gives it to a user.
func newKey(t *testing.T, id int, user string) (key, sql string) {
	t.Helper()
	key, err := policy.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return key,
		fmt.Sprintf("INSERT INTO rate_limit_api_keys (id, digest, user_id) VALUES (%d, '\\x%s', '%s');", id,
			policy.Digest(key), user)
}

// An upstream learns which limit let a request pass beyond its quota, and by how much.
func TestTheUpstreamLearnsWhatARequestExceeds(t *testing.T) {
	c := CreateConfig()
	c.Other["dsn"], c.Other["timeout"], c.Other["onError"] = withPolicy(t, ""), "10s", "deny"
	c.Policy = []Settings{{"forwardHeaders": "true"}}
	c.Zones = []Zone{{Other: Settings{"prefix": "trial\n", "key": "x", "limit": "5 1h", "cost": "3",
		"mode": "shadow"}}}
	var told []string
	next := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		told = append(told,
			strings.Join(r.Header["X-Ratelimit-Exceeded"], ",")+" by "+
				strings.Join(r.Header["X-Ratelimit-Exceeded-By"], ","))
	})
	h := open(t, t.Context(), newProcess(time.Millisecond), next, c)
	for range 2 {
		send(h, "X-Ratelimit-Exceeded", "forged", "X-Ratelimit_Exceeded-By", "9")
	}
	if want := []string{" by ", "trial%0A by 1"}; !slices.Equal(told, want) {
		t.Errorf("the upstream is told %q, want %q", told, want)
	}
}

func TestTheUpstreamLearnsWhoARequestIs(t *testing.T) {
	key, insert := newKey(t, 7, "alice")
	dsn := withPolicy(t, people+insert+`SELECT rate_limit_rule('plan', tiers => '{free}', per_hour => 5);`)
	forged := []string{"X-Ratelimit-User", "root", "X-Ratelimit-Tier", "gold", "X-Ratelimit-Key-Id", "1",
		"X-Ratelimit-Rule", "none", "X_ratelimit_user", "root", "X-Ratelimit-Key_Id", "1",
		"X-Ratelimit-Exceeded", "a", "X-Ratelimit-Exceeded_By", "1"}
	h := governed(t, dsn, func(*Config) {})
	for _, step := range []struct{ name, value, want string }{
		{"Authorization", "Bearer " + key, "alice|free|7|plan|4"},
		{"X-User", "alice", "alice|free||plan|3"},
		{"X-User", "line\nbreak", "line%0Abreak|free||plan|3"},
		{"X-User", "line%0Abreak", "line%250Abreak|anonymous|||2"},
		{"X-User", " alice", "%20alice|anonymous|||2"},
		{"X-User", "bob", "bob|pro|||2"},
		{"X-Nobody", "x", "|anonymous|||1"},
	} {
		w := send(h, append([]string{step.name, step.value}, forged...)...)
		if w.Code != http.StatusOK || w.Body.String() != step.want {
			t.Errorf("%s: %d %s, want %s", step.value, w.Code, w.Body, step.want)
		}
	}
	silent := governed(t, dsn, func(c *Config) { c.Policy[0]["forwardHeaders"] = "" })
	if w := send(silent, append([]string{"X-User", "alice"}, forged...)...); w.Body.String() != "||||0" {
		t.Errorf("without forwardHeaders the upstream gets %s, want none", w.Body)
	}
}

// A proxy does not pass on the headers that Connection names.
func TestAClientCannotHideFromTheUpstreamWhoARequestIs(t *testing.T) {
	h := governed(t, withPolicy(t, people), func(*Config) {})
	for sent, want := range map[string]string{
		"close, X-RateLimit-User": "close",
		"x-ratelimit-user,X-RateLimit_Tier , x-ratelimit-key-id,x-ratelimit-rule": "",
		"keep-alive, Upgrade": "keep-alive, Upgrade",
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("X-User", "alice")
		r.Header.Set("Connection", sent)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if got := r.Header.Get("Connection"); got != want || w.Body.String() != "alice|free|||2" {
			t.Errorf("Connection: %q becomes %q, want %q; the upstream is told %s", sent, got, want, w.Body)
		}
	}
}

// A request that fails in the middleware is not taken for an earlier one.
func TestARequestThatPanicsHasNoUser(t *testing.T) {
	h := governed(t, withPolicy(t, people), func(c *Config) { c.Other["onError"] = "allow" }).(*handler)
	if w := send(h, "X-User", "alice"); w.Body.String() != "alice|free|||2" {
		t.Fatalf("the upstream is told %s", w.Body)
	}
	for len(h.requests.free) > 1 { // the next request gets the memory of the last one
		<-h.requests.free
	}
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.URL = nil
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != http.StatusOK || w.Body.String() != "||||0" {
		t.Errorf("%d, and the upstream is told %s", w.Code, w.Body)
	}
}

// Policies are shared by middlewares with the same settings, and closed after the last one.
func TestAPolicyIsShared(t *testing.T) {
	dsn := withPolicy(t, people)
	p := newProcess(time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	for _, conns := range []string{"3", "3", "4"} {
		c := CreateConfig()
		c.Other["dsn"], c.Other["timeout"], c.Other["maxConns"], c.Policy = dsn, "1ms", conns, []Settings{{}}
		open(t, ctx, p, &served{}, c)
	}
	if n := len(p.host.Shared()); n != 4 {
		t.Errorf("%d databases and policies, want 2 and 2", n)
	}
	cancel()
	await.Within(t, time.Minute, "the policies to be closed",
		func() bool { return len(p.host.Shared()) == 0 })
}
