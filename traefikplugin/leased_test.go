package traefikplugin

import (
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/seed"
)

// names returns the sorted names of headers.
func names(h http.Header) []string { return slices.Sorted(maps.Keys(h)) }

// TestALeaseDecidesAsTheQueue sends the same random requests to a handler with leases and to one that sends
// all to the queue, and compares the responses. Each has its own row. The requests do not use up the quota,
// because a lease leaves refusals to the queue.
func TestALeaseDecidesAsTheQueue(t *testing.T) {
	dsn := cluster.Open(t)
	random := seed.New(t)
	values := []string{"a", "A", "x:y", "192.0.2.1", "192.0.2.77", "2001:db8::1", "2001:DB8::2",
		"::ffff:192.0.2.1", "sha256:" + strings.Repeat("0", 64), ""}
	for _, key := range []string{"{header.X-Key}", "{remote_ip}", "{client_ip}", "all"} {
		for _, ipv4 := range []string{"32", "24"} {
			t.Run(key+"/"+ipv4, func(t *testing.T) {
				made := func(form string) *handler {
					c := &Config{Other: Settings{"dsn": dsn, "timeout": "30s", "onError": "deny",
						"prefix": t.Name() + form, "key": key, "ipv4Prefix": ipv4, "limit": "1000000 1h",
						"algorithm": "fixed_window", "lease": "5%", "cost": "3"}}
					return open(t, t.Context(), shared, &served{}, c)
				}
				queued, leased := made("queued"), made("leased")
				if leased.leased == nil {
					t.Fatal("no leases")
				}
				queued.leased = nil
				// The header does not count units on their way between the row and the store, so it is exact
				// when there are none.
				isExact := false
				admitted := leased.leased.admitted
				for n := 0; atomic.LoadInt64(admitted) < 200 || !isExact; n++ {
					if n == 20000 {
						t.Fatalf("%d requests were decided by leases; the last one was exact: %v", *admitted,
							isExact)
					}
					host := values[3+random.IntN(5)]
					address := host + ":80"
					if strings.Contains(host, ":") {
						address = "[" + host + "]:80"
					}
					header := []string{values[random.IntN(len(values))],
						values[random.IntN(len(values))]}[:min(2, 1+random.IntN(20)/19)]
					var responses []*httptest.ResponseRecorder
					for _, h := range []http.Handler{queued, leased} {
						r := httptest.NewRequest(http.MethodGet, "/", nil)
						r.RemoteAddr, r.Header["X-Key"] = address, header
						w := httptest.NewRecorder()
						h.ServeHTTP(w, r)
						responses = append(responses, w)
					}
					want, got := responses[0], responses[1]
					if got.Code != http.StatusOK || want.Code != http.StatusOK {
						t.Fatalf("request %d of %s, %q: %d, want %d", n, address, header, got.Code, want.Code)
					}
					if got, want := got.Header(), want.Header(); !slices.Equal(got["X-Ratelimit-Limit"],
						[]string{"1000000"}) || !slices.Equal(names(got), names(want)) ||
						!slices.Equal(got["X-Ratelimit-Limit"], want["X-Ratelimit-Limit"]) {
						t.Fatalf("request %d of %s, %q: the headers are %q, want %q", n, address, header,
							got, want)
					}
					remaining, _ := strconv.Atoi(got.Header().Get("X-Ratelimit-Remaining"))
					wantRemaining, _ := strconv.Atoi(want.Header().Get("X-Ratelimit-Remaining"))
					isExact = remaining == wantRemaining
					// 5 % of the limit
					if difference := remaining - wantRemaining; difference < -50000 || difference > 50000 {
						t.Fatalf("request %d of %s, %q: %d are left, want about %d", n, address, header,
							remaining, wantRemaining)
					}
					reset, _ := strconv.Atoi(got.Header().Get("X-Ratelimit-Reset"))
					wantReset, _ := strconv.Atoi(want.Header().Get("X-Ratelimit-Reset"))
					// the first hits of the rows are not at the same time
					if difference := reset - wantReset; difference < -5 || difference > 5 {
						t.Fatalf("request %d of %s, %q: the reset is at %d, want %d", n, address, header,
							reset, wantReset)
					}
				}
			})
		}
	}
}
