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

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
)

// policyMiddleware returns a middleware with a policy. edit changes its configuration. The upstream responds
// with the user, tier, key ID and rule that it receives, and with the number of X-RateLimit headers.
func policyMiddleware(t *testing.T, dsn string, edit func(c *Config)) http.Handler {
	t.Helper()
	c := &Config{Other: Settings{"dsn": dsn, "timeout": "10s", "onError": "deny"}}
	c.Other["policy"] = Settings{"apiKey": "{header.Authorization}", "user": "{header.X-User}",
		"withoutKey": "anonymous", "forwardHeaders": "true"}
	edit(c)
	next := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		received := []string{}
		for name, values := range r.Header {
			if strings.HasPrefix(strings.ToLower(strings.ReplaceAll(name, "_", "-")), "x-ratelimit") {
				received = append(received, name+"="+strings.Join(values, ","))
			}
		}
		fmt.Fprintf(w, "%s|%s|%s|%s|%d", r.Header.Get("X-RateLimit-User"), r.Header.Get("X-RateLimit-Tier"),
			r.Header.Get("X-RateLimit-Key-Id"), r.Header.Get("X-RateLimit-Rule"), len(received))
	})
	return newMiddleware(t, t.Context(), newProcess(time.Millisecond), next, c)
}

// If a limit admits a request beyond its quota, the upstream receives the limit and the excess, and never the
// headers that a client forges.
func TestUpstreamReceivesExceededLimit(t *testing.T) {
	c := validConfig(Settings{"prefix": "trial\n", "key": "x", "limit": "5 1h", "cost": "3", "mode": "shadow",
		"dsn": policytest.Open(t, ""), "timeout": "10s", "onError": "deny"})
	c.Other["policy"] = Settings{"forwardHeaders": "true"}
	var received []string
	next := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		received = append(received,
			strings.Join(r.Header["X-Ratelimit-Exceeded"], ",")+" by "+
				strings.Join(r.Header["X-Ratelimit-Exceeded-By"], ","))
	})
	h := newMiddleware(t, t.Context(), newProcess(time.Millisecond), next, c)
	for range 2 {
		get(h, "X-Ratelimit-Exceeded", "forged", "X-Ratelimit_Exceeded-By", "9")
	}
	if want := []string{" by ", "trial%0A by 1"}; !slices.Equal(received, want) {
		t.Errorf("the upstream receives %q, want %q", received, want)
	}
}

// The upstream receives the user, the tier, the id of the API key and the rule of a request, escaped where
// they have spaces or control characters. It never receives the same headers from a client, even without
// forwardHeaders.
func TestUpstreamReceivesIdentity(t *testing.T) {
	key, insert := policytest.NewKey(t, 7, "alice")
	dsn := policytest.Open(t,
		policytest.People+insert+`SELECT rate_limit_rule('plan', tiers => '{free}', per_hour => 5);
		INSERT INTO rate_limit_users (user_id, tier) VALUES (E'line\nbreak', 'free');`)
	forged := []string{"X-Ratelimit-User", "root", "X-Ratelimit-Tier", "gold", "X-Ratelimit-Key-Id", "1",
		"X-Ratelimit-Rule", "none", "X_ratelimit_user", "root", "X-Ratelimit-Key_Id", "1",
		"X-Ratelimit-Exceeded", "a", "X-Ratelimit-Exceeded_By", "1"}
	h := policyMiddleware(t, dsn, func(*Config) {})
	for _, step := range []struct{ name, value, want string }{
		{name: "Authorization", value: "Bearer " + key, want: "alice|free|7|plan|4"},
		{name: "X-User", value: "alice", want: "alice|free||plan|3"},
		{name: "X-User", value: "line\nbreak", want: "line%0Abreak|free||plan|3"},
		{name: "X-User", value: "line%0Abreak", want: "line%250Abreak|anonymous|||2"},
		{name: "X-User", value: "alice s", want: "alice s|anonymous|||2"},
		{name: "X-User", value: " alice ", want: "alice|free||plan|3"},
		{name: "X-User", value: "bob", want: "bob|pro|||2"},
		{name: "X-Nobody", value: "x", want: "|anonymous|||1"},
	} {
		w := get(h, append([]string{step.name, step.value}, forged...)...)
		if w.Code != http.StatusOK || w.Body.String() != step.want {
			t.Errorf("%s: status %d, body %s; want 200, %s", step.value, w.Code, w.Body, step.want)
		}
	}
	silent := policyMiddleware(t, dsn, func(c *Config) {
		c.Other["policy"].(Settings)["forwardHeaders"] = ""
	})
	w := get(silent, append([]string{"X-User", "alice"}, forged...)...)
	if w.Body.String() != "||||0" {
		t.Errorf("without forwardHeaders: the upstream receives %s, want no headers", w.Body)
	}
}

// If one of two middlewares in a chain forwards, the upstream receives its headers, in both orders. If both
// forward, the upstream receives only the headers of the second.
func TestUpstreamReceivesIdentityFromEitherMiddleware(t *testing.T) {
	dsn := policytest.Open(t, policytest.People+`SELECT rate_limit_rule('plan', tiers => '{free}',
		per_hour => 5);`)
	for _, c := range []struct {
		outer, inner string // forwardHeaders
		user         string // the user setting of the inner middleware
		want         string
	}{
		{outer: "true", want: "alice|free||plan|3"},
		{inner: "true", user: "{header.X-User}", want: "alice|free||plan|3"},
		{outer: "true", inner: "true", want: "|anonymous|||1"},
	} {
		inner := policyMiddleware(t, dsn, func(config *Config) {
			config.Other["policy"] = Settings{"user": c.user, "forwardHeaders": c.inner}
		})
		outer := policyMiddleware(t, dsn, func(config *Config) {
			config.Other["policy"].(Settings)["forwardHeaders"] = c.outer
		}).(*handler)
		outer.upstream.next = inner
		w := get(outer, "X-User", "alice", "X-Ratelimit-User", "mallory", "X-Ratelimit-Key_id", "1")
		if got := w.Body.String(); got != c.want {
			t.Errorf("forwardHeaders %q and %q: the upstream receives %s, want %s", c.outer, c.inner, got,
				c.want)
		}
	}
}

// A proxy does not forward the headers that Connection names, so the plugin removes its own headers from
// Connection.
func TestClientCannotHideIdentityHeaders(t *testing.T) {
	h := policyMiddleware(t, policytest.Open(t, policytest.People), func(*Config) {})
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
		if got := r.Header.Get("Connection"); got != want {
			t.Errorf("Connection %q becomes %q, want %q", sent, got, want)
		}
		if got := w.Body.String(); got != "alice|free|||2" {
			t.Errorf("Connection %q: the upstream receives %s, want alice|free|||2", sent, got)
		}
	}
}

// A request that panics before its verdict does not have the verdict of an earlier request.
func TestPanickingRequestHasNoUser(t *testing.T) {
	allow := func(c *Config) { c.Other["onError"] = "allow" }
	h := policyMiddleware(t, policytest.Open(t, policytest.People), allow).(*handler)
	if w := get(h, "X-User", "alice"); w.Body.String() != "alice|free|||2" {
		t.Fatalf("the upstream receives %s, want alice|free|||2", w.Body)
	}
	for len(h.requests.free) > 1 { // so that the next request reuses the last Request
		<-h.requests.free
	}
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.URL = nil
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if w.Code != http.StatusOK || w.Body.String() != "||||0" {
		t.Errorf("status %d, the upstream receives %s; want 200 and no headers", w.Code, w.Body)
	}
}

// A site that lets requests without a key pass, in a tier that no rule limits, is a problem of the proxy
// while the site is configured.
func TestAnOpenSiteIsAProblem(t *testing.T) {
	dsn := policytest.Open(t, policytest.People+"SELECT rate_limit_rule('plan', tiers => '{free}', "+
		"per_hour => 5)")
	p := newProcess(time.Millisecond)
	open := func(tier, withoutKey string) context.CancelFunc {
		ctx, cancel := context.WithCancel(t.Context())
		newMiddleware(t, ctx, p, http.NotFoundHandler(), &Config{Other: Settings{"dsn": dsn, "timeout": "1ms",
			"policy": Settings{"apiKey": "{header.X-Api-Key}", "tier": tier, "withoutKey": withoutKey}}})
		return cancel
	}
	state := func(want string) {
		t.Helper()
		await.Within(t, time.Minute, want, func() bool {
			return cluster.Query[string](t, dsn, `SELECT coalesce(string_agg(substring(summary,
				'tier "[^"]*'), ' '
				ORDER BY summary), 'none') FROM rate_limit_state WHERE state = 'problem'`) == want
		})
	}
	endFirst, endSecond := open("", "anonymous"), open("{header.X-Tier}", "anonymous")
	open("pro", "anonymous")
	open("", "refuse")
	state(`tier "anonymous tier "pro`)
	endFirst()
	cluster.Execute(t, dsn, "SELECT rate_limit_rule('meant', action => 'exempt', tiers => '{pro}')")
	state(`tier "anonymous`)
	endSecond()
	state("none")
}
