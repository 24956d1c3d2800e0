package integration

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// The load of the tests that count how many requests pass a limit of quota.
const (
	crowd    = 64
	requests = 1000
	quota    = 100
)

func TestCaddyAndTraefikCountTogether(t *testing.T) {
	dsn := cluster.Open(t)
	both := startBoth(t, dsn, route{"/", "", decideAlways(object{
		"prefix": "together", "key": "{header.X-Client}", "limit": "100 1h",
		"zones": []object{{"prefix": "many", "key": "{header.Authorization}", "limit": "1000000 1d", "algorithm": "fixed_window", "durable": true}},
	})})
	urls := []string{both[0].url + "/", both[1].url + "/"}
	// Before the quota is used up, and after.
	for _, status := range []int{http.StatusOK, http.StatusTooManyRequests} {
		client := "headers-" + strconv.Itoa(status)
		get := func(url string) harness.Answer {
			return harness.Ask(t, harness.Get(url, "X-Client", client, "Authorization", "Bearer secret"))
		}
		if status == http.StatusTooManyRequests {
			for range quota {
				get(urls[0])
			}
		}
		byCaddy, byTraefik := get(urls[0]), get(urls[1])
		if byCaddy.Status != status || byTraefik.Status != status {
			t.Fatalf("Caddy answers %d and Traefik %d, want %d", byCaddy.Status, byTraefik.Status, status)
		}
		checkSameAnswer(t, byCaddy, byTraefik)
	}
	if n := cluster.Query[int64](t, dsn, "SELECT count(*) FROM rate_limit_durable WHERE prefix = 'many' AND key NOT LIKE 'sha256:%'"); n > 0 {
		t.Errorf("%d keys made from a credential are stored as they are", n)
	}
	r := harness.Run(context.Background(), harness.Load{Clients: crowd, Requests: requests, Request: func(i int) *http.Request {
		return harness.Get(urls[i%2], "X-Client", "crowd", "Authorization", "Bearer secret")
	}})
	if err := r.Err(); err != nil {
		t.Fatal(err)
	}
	if r.Status[http.StatusOK] != quota || r.Status[http.StatusTooManyRequests] != requests-quota {
		t.Errorf("%v; want %d×200 and %d×429", r, quota, requests-quota)
	}
}

// checkSameAnswer compares the headers and bodies of two answers. Times and remaining
// quotas may differ by one.
func checkSameAnswer(t *testing.T, byCaddy, byTraefik harness.Answer) {
	t.Helper()
	if byCaddy.Status == http.StatusTooManyRequests && withoutDigits(byCaddy.Body) != withoutDigits(byTraefik.Body) {
		t.Errorf("bodies %q and %q", byCaddy.Body, byTraefik.Body)
	}
	for _, name := range []string{"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "Retry-After"} {
		a, b := byCaddy.Header.Values(name), byTraefik.Header.Values(name)
		if len(a) != len(b) || len(a) > 1 {
			t.Errorf("%s: %q and %q", name, a, b)
			continue
		}
		if len(a) == 1 && max(number(t, a[0])-number(t, b[0]), number(t, b[0])-number(t, a[0])) > 1 {
			t.Errorf("%s: %q and %q", name, a, b)
		}
	}
	if a, b := byCaddy.Header.Get("Content-Type"), byTraefik.Header.Get("Content-Type"); byCaddy.Status == http.StatusTooManyRequests && (a != b || a != "application/json") {
		t.Errorf("Content-Type: %q and %q", a, b)
	}
}

func withoutDigits(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= '0' && r <= '9' {
			return -1
		}
		return r
	}, text)
}

func number(t testing.TB, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
