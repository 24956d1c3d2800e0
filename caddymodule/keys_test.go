package caddymodule

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// A 0 is out of range in JSON, as it is in a Caddyfile and in Traefik.
func TestZeroIsNotTheDefault(t *testing.T) {
	for field, want := range map[string]string{
		"burst": "a whole number from 1 to 9007199254740992", "ipv4_prefix": "a whole number from 1 to 32", "ipv6_prefix": "a whole number from 1 to 128",
	} {
		var h Handler
		if err := json.Unmarshal([]byte(`{"prefix": "a", "limit": "1 1h", "algorithm": "gcra", "`+field+`": 0}`), &h); err != nil {
			t.Fatal(err)
		}
		if err := h.compile(); err == nil || err.Error() != field+`: "0": must be `+want {
			t.Errorf("%s of 0: %v", field, err)
		}
	}
}

// One page is one key, however a client writes its path and its query.
func TestKeysOfPathsAndQueries(t *testing.T) {
	for key, test := range map[string]struct {
		one, two string
		same     bool
	}{
		"{path}":    {"/login", "//x/.././login", true},
		"{path.0}":  {"/login", "//x/.././login", true},
		"{dir}":     {"/a/b", "/a//c/../b", true},
		"{file}":    {"/a/2001:db8::1", "/b/2001:db8::2", true},
		"{uri}":     {"/login?a&b", "//login?a;b", true},
		"{query}":   {"/?a=b&c", "/?a=b;c", true},
		"{query.q}": {"/?q=a", "/?q=a;b=c", true},
		"{query.b}": {"/?q=a&b=c", "/?q=a;b=d", false},
	} {
		for _, text := range []string{key, key + "|"} {
			h := newHandler(t, LimitSettings{Prefix: "page", Limit: "1 1h", Key: Text(text)})
			second := 0
			for _, url := range []string{test.one, test.two} {
				second = statusOf(t, h, caddyhttp.PrepareRequest(httptest.NewRequest(http.MethodGet, url, nil), caddy.NewReplacer(), httptest.NewRecorder(), &caddyhttp.Server{}))
			}
			if (second == http.StatusTooManyRequests) != test.same {
				t.Errorf("%s, %s then %s: the second gets %d", text, test.one, test.two, second)
			}
		}
	}
}

// All placeholders of Caddy's requests are accepted, and so are those that other modules
// set.
func TestKnownPlaceholders(t *testing.T) {
	for _, text := range []string{
		"", "everybody", `a \{literal} brace`, "{client_ip}", "{remote_ip}", "{remote_host}", "{host}", "{labels.0}", "{hostport}", "{method}", "{path}", "{path.1}",
		"{uri}", "{query}", "{query.x}", "{header.X}", "{cookie.x}", "{scheme}", "{uuid}", "{orig_uri}", "{vars.tenant}", "{http.auth.user.id}", "{tls_client_subject}",
		"{http.request.local.port}", "{http.request.remote.host/24,64}", "{http.regexp.x.1}", "{my.map}", "{env.NAME}", "{system.hostname}", "{http.request.body}",
	} {
		if _, err := parseText("key", text); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// The log warns once if a key is empty, because all such requests share a quota.
func TestAnEmptyKeyIsWarnedAboutOnce(t *testing.T) {
	h := newHandler(t, LimitSettings{Prefix: "a", Limit: "9 1h", Key: "{http.auth.user.id}"}, LimitSettings{Prefix: "b", Limit: "9 1h", Key: "{header.X-User}"}, LimitSettings{Prefix: "c", Limit: "9 1h", Key: "all"})
	core, logs := observer.New(zap.WarnLevel)
	h.logger = zap.New(core)
	for _, user := range []string{"ann", "", ""} {
		r := request()
		r.Header.Set("X-User", user)
		statusOf(t, h, r)
	}
	var prefixes []string
	for _, entry := range logs.FilterMessage("the key of a request is empty: all such requests share one quota").All() {
		prefixes = append(prefixes, entry.ContextMap()["prefix"].(string))
	}
	if len(prefixes) != 2 || prefixes[0] != "a" || prefixes[1] != "b" {
		t.Errorf("warnings for %q, want one for a and one for b", prefixes)
	}
}

// statusOf is the status of the response to a request.
func statusOf(t *testing.T, h *Handler, r *http.Request) int {
	t.Helper()
	w := httptest.NewRecorder()
	if err := h.ServeHTTP(w, r, emptyPage); err != nil {
		var refusal caddyhttp.HandlerError
		if !errors.As(err, &refusal) {
			t.Fatal(err)
		}
		return refusal.StatusCode
	}
	return w.Code
}

// flaky fails, then refuses without asking the database, then asks it.
type flaky struct {
	ratelimit.Store
	calls int
}

func (f *flaky) Take(_ context.Context, _ time.Duration, _ []ratelimit.Hit, decisions []ratelimit.Decision) error {
	f.calls++
	switch f.calls {
	case 1:
		return ratelimit.ErrUnavailable
	case 2:
		decisions[0] = ratelimit.Decision{Limit: 1, RetryAfter: time.Second, Source: ratelimit.FromBlocked}
	default:
		decisions[0] = ratelimit.Decision{Allowed: true, Limit: 1, Source: ratelimit.FromPostgres}
	}
	return nil
}

// TestTheLogSaysThatTheDatabaseAnswersAgain, but not after a refusal that needs no
// database.
func TestTheLogSaysThatTheDatabaseAnswersAgain(t *testing.T) {
	h := newHandler(t, LimitSettings{Prefix: "again", Limit: "1 1h"})
	core, logs := observer.New(zap.InfoLevel)
	h.logger = zap.New(core)
	h.site.Decider.Store = &flaky{}
	for i, want := range []int{0, 0, 1, 1} {
		statusOf(t, h, request())
		if n := logs.FilterMessage("the database answers again").Len(); n != want {
			t.Errorf("after request %d it was logged %d times, want %d", i+1, n, want)
		}
	}
	// It is said at the level of the failure, and with the count of requests without a decision.
	again := logs.FilterMessage("the database answers again").All()[0]
	if failed := logs.FilterMessage("no decision: letting requests pass").All()[0]; again.Level != failed.Level || again.ContextMap()["requests_without_decision"] != int64(1) {
		t.Errorf("%v: %v, after %v", again.Level, again.ContextMap(), failed.Level)
	}
}

// locked decides every second request. It refuses the others because their row is locked.
type locked struct {
	ratelimit.Store
	calls int
}

func (l *locked) Take(_ context.Context, _ time.Duration, _ []ratelimit.Hit, decisions []ratelimit.Decision) error {
	if l.calls++; l.calls%2 == 1 {
		return fmt.Errorf("%w: another transaction has locked the row of a key", ratelimit.ErrTimeout)
	}
	decisions[0] = ratelimit.Decision{Allowed: true, Limit: 1, Source: ratelimit.FromPostgres}
	return nil
}

// While one row is locked, the database answers.
func TestALockedRowIsNoOutage(t *testing.T) {
	h := newHandler(t, LimitSettings{Prefix: "locked", Limit: "1 1h"})
	core, logs := observer.New(zap.InfoLevel)
	h.logger = zap.New(core)
	h.site.Decider.Store = &locked{}
	for range 10 {
		statusOf(t, h, request())
	}
	if n := logs.FilterMessage("the database answers again").Len(); n != 0 {
		t.Errorf("it was logged %d times that the database answers again", n)
	}
	if n := logs.FilterMessage("no decision: letting requests pass").Len(); n != 1 {
		t.Errorf("%d lines about requests without a decision, want 1 a second", n)
	}
}
