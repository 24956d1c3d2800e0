package caddymodule

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// TestAHostOrNetworkIsOneClient: a host in upper case is the same host, and all addresses
// of a network are one client, also if the key has more than that.
func TestAHostOrNetworkIsOneClient(t *testing.T) {
	for i, test := range []struct {
		rule     LimitSettings
		one, two string // a host, or an address, or a path and a query
		same     bool
	}{
		{LimitSettings{Key: "{http.request.host}"}, "example.test", "Example.TEST", true},
		{LimitSettings{Key: "{host}"}, "example.test", "example.test.", true},
		{LimitSettings{Key: "{header.Host}"}, "example.test", "EXAMPLE.test:8080", true},
		{LimitSettings{Key: "{header.Host}"}, "a.test", "b.test", false},
		{LimitSettings{Key: "{http.request.host}|login"}, "example.test", "EXAMPLE.test", true},
		{LimitSettings{Key: "{http.request.host}|login"}, "a.test", "b.test", false},
		{LimitSettings{Key: "{http.request.header.X-Who}"}, "ann", "Ann", false},
		{LimitSettings{Key: "{http.vars.client_ip}"}, "2001:db8::1", "2001:db8::2", true},
		{LimitSettings{Key: "{http.vars.client_ip}"}, "2001:db8::1", "2001:db8:0:1::1", false},
		{LimitSettings{Key: "{http.vars.client_ip}"}, "192.0.2.1", "::ffff:192.0.2.1", true},
		{LimitSettings{Key: "{http.vars.client_ip}"}, "192.0.2.1", "192.0.2.2", false},
		{LimitSettings{Key: "{http.vars.client_ip}|x"}, "2001:db8::1", "2001:db8::2", true},
		{LimitSettings{Key: "{http.request.header.X-Who}"}, "2001:db8::1", "2001:DB8::2", true},
		{LimitSettings{Key: "{http.vars.client_ip}", IPv6Prefix: pointer(128)}, "2001:db8::1", "2001:db8::2", false},
		{LimitSettings{Key: "{http.vars.client_ip}", IPv6Prefix: pointer(48)}, "2001:db8::1", "2001:db8:0:1::2", true},
		{LimitSettings{Key: "{http.vars.client_ip}|login", IPv6Prefix: pointer(64)}, "2001:db8::1", "2001:db8::2", true},
		{LimitSettings{Key: "{http.vars.client_ip}|login", IPv6Prefix: pointer(64)}, "2001:db8::1", "2001:db8:0:1::1", false},
		{LimitSettings{Key: "login:{http.vars.client_ip}", IPv4Prefix: pointer(24)}, "192.0.2.1", "192.0.2.77", true},
		{LimitSettings{Key: "login:{http.vars.client_ip}"}, "192.0.2.1", "192.0.2.77", false},
	} {
		test.rule.Prefix, test.rule.Limit = "one"+strconv.Itoa(i), "1 1h"
		h := newHandler(t, test.rule)
		passed := 0
		for _, client := range []string{test.one, test.two} {
			r := request()
			r.Host = client
			r.RemoteAddr = client + ":1"
			r.Header.Set("X-Who", client)
			caddyhttp.SetVar(r.Context(), caddyhttp.ClientIPVarKey, client)
			if statusOf(t, h, r) == http.StatusOK {
				passed++
			}
		}
		if (passed == 1) != test.same {
			t.Errorf("%s, by %s and %s: %d passed", test.rule.Key, test.one, test.two, passed)
		}
	}
}

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
			h := newHandler(t, LimitSettings{Prefix: "page", Limit: "1 1h", Key: text})
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
		if _, err := newKey(text, new(edge.ConfiguredLimit)); err != nil {
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

// TestAClientCannotPassForFree: a cost of 0 counts as min_cost, which is 1 by default.
func TestAClientCannotPassForFree(t *testing.T) {
	three := int64(3)
	for _, test := range []struct {
		least  *int64
		passed int
	}{{nil, 6}, {&three, 2}} {
		h := newHandler(t, LimitSettings{Prefix: "free", Limit: "6 1h", Cost: "{http.request.header.X-Files}", MinCost: test.least})
		passed := 0
		for range 10 {
			r := request()
			r.Header.Set("X-Files", "0")
			if statusOf(t, h, r) == http.StatusOK {
				passed++
			}
		}
		if passed != test.passed {
			t.Errorf("%d requests of 10 pass a limit of 6 with X-Files: 0, want %d", passed, test.passed)
		}
	}
}

// TestACostOfZeroChargesNothing with min_cost 0: such a request passes while something is
// left.
func TestACostOfZeroChargesNothing(t *testing.T) {
	h := newHandler(t, LimitSettings{Prefix: "free", Limit: "2 1h", Cost: "{http.request.header.X-Cost}", MinCost: new(int64)})
	for i, step := range []struct {
		cost string
		want int
	}{{"0", 200}, {"0", 200}, {"0", 200}, {"2", 200}, {"0", 429}, {"1", 429}, {"0", 429}} {
		r := request()
		r.Header.Set("X-Cost", step.cost)
		if got := statusOf(t, h, r); got != step.want {
			t.Errorf("request %d, of cost %s: %d, want %d", i, step.cost, got, step.want)
		}
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
	h.store = &store{Store: &flaky{}}
	h.decider.Store = h.store
	for i, want := range []int{0, 0, 1, 1} {
		statusOf(t, h, request())
		if n := logs.FilterMessage("the database answers again").Len(); n != want {
			t.Errorf("after request %d it was logged %d times, want %d", i+1, n, want)
		}
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
	h.store = &store{Store: &locked{}}
	h.decider.Store = h.store
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
