package integration

import (
	"context"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"net/http"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// TestExampleCaddyfile runs the Caddyfile that the repository shows, in front of
// an upstream, up to the request that it refuses.
func TestExampleCaddyfile(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if _, err := w.Write([]byte("upstream")); err != nil {
			t.Error(err)
		}
	}))
	defer upstream.Close()
	text, err := os.ReadFile("../Caddyfile.example")
	if err != nil {
		t.Fatal(err)
	}
	// Every request has to be decided here, however slow the machine is.
	config := strings.ReplaceAll(string(text), "on_error allow", strings.Join(decided, "\n\t\t"))
	if config == string(text) {
		t.Fatal("Caddyfile.example does not say on_error allow")
	}
	dsn := cluster.Open(t)
	address := harness.FreeAddress(t)
	c := launchConfig(t, buildCaddy(t), address, config, "DATABASE_URL="+dsn, "PORT="+address[strings.LastIndex(address, ":")+1:],
		"UPSTREAM="+strings.TrimPrefix(upstream.URL, "http://"))
	c.AwaitAddress(t, address)

	const quota = 10
	began := time.Now()
	for i := range quota {
		answer := harness.Ask(t, harness.Get(c.url))
		reset, err := strconv.ParseInt(answer.Header.Get("X-RateLimit-Reset"), 10, 64)
		if answer.Status != 200 || answer.Body != "upstream" ||
			answer.Header.Get("X-RateLimit-Limit") != strconv.Itoa(quota) || answer.Header.Get("X-RateLimit-Remaining") != strconv.Itoa(quota-1-i) ||
			err != nil || reset < began.Unix() || reset > time.Now().Unix()+121 || answer.Header.Get("Retry-After") != "" {
			t.Fatalf("request %d: %d %v %q", i+1, answer.Status, answer.Header, answer.Body)
		}
	}
	answer := harness.Ask(t, harness.Get(c.url))
	retry, err := strconv.Atoi(answer.Header.Get("Retry-After"))
	if answer.Status != 429 || err != nil || retry < 1 || retry > 120 || answer.Header.Get("X-RateLimit-Remaining") != "0" ||
		answer.Header.Get("Content-Type") != "application/json" ||
		answer.Body != `{"error":"Too many requests","retryAfter":`+strconv.Itoa(retry)+`}` {
		t.Errorf("request %d: %d %v %q", quota+1, answer.Status, answer.Header, answer.Body)
	}
	// The zones count the same requests, the quota in the table that survives a crash.
	conn := cluster.Connect(t, dsn)
	defer conn.Close(context.Background())
	var daily, bursts int
	if err := conn.QueryRow(context.Background(), "SELECT (SELECT count::int FROM rate_limit_durable WHERE prefix = 'demo-day'), (SELECT count(*)::int FROM rate_limit_ephemeral WHERE prefix = 'demo-burst')").Scan(&daily, &bursts); err != nil || daily != quota || bursts != 1 {
		t.Errorf("the zone demo-day has counted %d requests, and demo-burst has %d rows, %v", daily, bursts, err)
	}
}
