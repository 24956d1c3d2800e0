package caddymodule

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// TestOneClient: a host in capitals is the same host, and all addresses of a
// network are one client, also where more than that is in the key.
func TestOneClient(t *testing.T) {
	for i, test := range []struct {
		rule     Rule
		one, two string // a host, or an address
		same     bool
	}{
		{Rule{Key: "{http.request.host}"}, "example.test", "Example.TEST", true},
		{Rule{Key: "{http.request.host}|login"}, "example.test", "EXAMPLE.test", true},
		{Rule{Key: "{http.request.host}|login"}, "a.test", "b.test", false},
		{Rule{Key: "{http.request.header.X-Who}"}, "ann", "Ann", false},
		{Rule{Key: "{http.vars.client_ip}", IPv6Prefix: 64}, "2001:db8::1", "2001:db8::2", true},
		{Rule{Key: "{http.vars.client_ip}|login", IPv6Prefix: 64}, "2001:db8::1", "2001:db8::2", true},
		{Rule{Key: "{http.vars.client_ip}|login", IPv6Prefix: 64}, "2001:db8::1", "2001:db8:0:1::1", false},
		{Rule{Key: "login:{http.vars.client_ip}", IPv4Prefix: 24}, "192.0.2.1", "192.0.2.77", true},
		{Rule{Key: "login:{http.vars.client_ip}"}, "192.0.2.1", "192.0.2.77", false},
	} {
		test.rule.Prefix, test.rule.Limit = "one"+strconv.Itoa(i), "1 1h"
		h := bare(t, test.rule)
		passed := 0
		for _, who := range []string{test.one, test.two} {
			r := request()
			r.Host = who
			r.Header.Set("X-Who", who)
			caddyhttp.SetVar(r.Context(), caddyhttp.ClientIPVarKey, who)
			if answered(t, h, r) == http.StatusOK {
				passed++
			}
		}
		if (passed == 1) != test.same {
			t.Errorf("%s, by %s and %s: %d passed", test.rule.Key, test.one, test.two, passed)
		}
	}
}

// TestFreeRequests: who says that his request costs nothing passes as long as
// something is left, and takes nothing.
func TestFreeRequests(t *testing.T) {
	h := bare(t, Rule{Prefix: "free", Limit: "2 1h", Cost: "{http.request.header.X-Cost}"})
	for i, step := range []struct {
		cost string
		want int
	}{{"0", 200}, {"0", 200}, {"0", 200}, {"2", 200}, {"0", 429}, {"1", 429}, {"0", 429}} {
		r := request()
		r.Header.Set("X-Cost", step.cost)
		if got := answered(t, h, r); got != step.want {
			t.Errorf("request %d, of cost %s: %d, want %d", i, step.cost, got, step.want)
		}
	}
}

// answered is the status that a request gets.
func answered(t *testing.T, h *Handler, r *http.Request) int {
	t.Helper()
	w := httptest.NewRecorder()
	if err := h.ServeHTTP(w, r, silent); err != nil {
		var refusal caddyhttp.HandlerError
		if !errors.As(err, &refusal) {
			t.Fatal(err)
		}
		return refusal.StatusCode
	}
	return w.Code
}

// flaky fails, then knows a row to be used up without asking, then asks.
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

// TestWhoAnswersAgain: a refusal that needs no database says nothing of it.
func TestWhoAnswersAgain(t *testing.T) {
	h := bare(t, Rule{Prefix: "again", Limit: "1 1h"})
	core, logs := observer.New(zap.InfoLevel)
	h.logger = zap.New(core)
	h.store = &store{Store: &flaky{}}
	h.gate.Store = h.store
	for i, want := range []int{0, 0, 1, 1} {
		answered(t, h, request())
		if n := logs.FilterMessage("the database answers again").Len(); n != want {
			t.Errorf("after request %d it is said %d times, want %d", i+1, n, want)
		}
	}
}
