package integration

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
)

// Both proxies refuse a call of gRPC with the status of gRPC, and with grpc off as any other request.
func TestCallsOfGRPCAreRefusedInBothProxies(t *testing.T) {
	t.Parallel()
	upstream := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(upstream.Close)
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	client := &http.Client{Transport: &http.Transport{Protocols: protocols}}
	t.Cleanup(client.CloseIdleConnections)
	for grpc, want := range map[string]string{"on": "200 8 application/grpc 0",
		"off": "429  application/json 50"} {
		for proxy, url := range bothProxies(t, cluster.Open(t), upstream.URL, object{"prefix": "PROXY",
			"limit": "1 60d", "algorithm": "sliding_log", "key": "all", "grpc": grpc}) {
			got := ""
			for range 2 {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, nil)
				if err != nil {
					t.Fatal(err)
				}
				r.Header = http.Header{"Te": {"trailers"}, "Content-Type": {"application/grpc+proto"}}
				response, err := client.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				_ = response.Body.Close()
				h := response.Header
				got = fmt.Sprint(response.StatusCode, " ", h.Get("Grpc-Status"), " ",
					h.Get("Content-Type"), " ", max(0, response.ContentLength))
			}
			check.Equal(t, proxy+", grpc "+grpc, got, want)
		}
	}
}

// Both proxies describe limits of requests and of tokens beside each other, keep a limit with fields off out
// of the fields, let no fields of a provider pass, and refuse with an object where tokens are limited.
func TestBothProxiesDescribeLimitsOfTokens(t *testing.T) {
	t.Parallel()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-RateLimit-Remaining-Requests", "7")
		w.Header().Set("Anthropic-RateLimit-Tokens-Limit", "9")
		w.Header().Set("X-RateLimit-Limit-Tokens", "11")
	}))
	t.Cleanup(upstream.Close)
	zone := func(prefix, limit string, more ...any) object {
		z := object{"prefix": "PROXY-" + prefix, "limit": limit + " 60d", "algorithm": "fixed_window",
			"key": "all"}
		for i := 0; i < len(more); i += 2 {
			z[more[i].(string)] = more[i+1]
		}
		return z
	}
	names := []string{"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Limit-Tokens",
		"X-RateLimit-Remaining-Tokens", "X-RateLimit-Remaining-Requests", "Anthropic-RateLimit-Tokens-Limit",
		"X-Should-Retry", "Cache-Control"}
	zones := bothProxies(t, cluster.Open(t), upstream.URL, object{"zones": []object{zone("requests", "2"),
		zone("tokens", "9000", "unit", "tokens", "output", 1000), zone("hidden", "1000", "fields", "off")}})
	rules := bothProxies(t, policytest.Open(t, `SELECT rate_limit_rule('r', count_by => '{header:X-Case}',
		algorithm => 'fixed_window', limits => '{requests=2/60d,tokens=9000 tokens/60d,hidden=1000/60d}');
		SELECT rate_limit_limit('r', 'tokens', output => 1000);
		SELECT rate_limit_limit('r', 'hidden', fields => false)`),
		upstream.URL, object{"policy": object{"user": "{header.X-User}"}})
	for _, proxy := range []string{"caddy", "traefik"} {
		for url, limit := range map[string]string{zones[proxy]: proxy + "-requests",
			rules[proxy]: "r/requests"} {
			// The refusal is remembered, and asks no row of tokens.
			for i, want := range []string{"200 2 1 9000 8000", "200 2 0 9000 7000",
				"429 2 0 false no-store object"} {
				request := harness.Get(url, "X-Case", proxy)
				request.Method = http.MethodPost
				response := harness.Ask(t, request)
				got := fmt.Sprint(response.Status)
				for _, name := range names {
					if value := response.Header.Get(name); value != "" {
						got += " " + value
					}
				}
				if strings.Contains(response.Body, `{"message":"Too many requests: limit `+limit+`, retry `) {
					got += " object"
				}
				check.Equal(t, fmt.Sprint(proxy, ", ", limit, ", response ", i+1), got, want)
			}
		}
	}
}
