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

// headerNames returns the sorted names of headers.
func headerNames(h http.Header) []string { return slices.Sorted(maps.Keys(h)) }

// TestLeaseDecidesLikeQueue sends the same random requests to a handler with leases and to one that sends all
// requests to the queue, and compares the responses. Each has its own row. The requests do not exhaust the
// quota, because only the queue refuses requests.
func TestLeaseDecidesLikeQueue(t *testing.T) {
	dsn := cluster.Open(t)
	random := seed.New(t)
	values := []string{"a", "A", "x:y", "192.0.2.1", "192.0.2.77", "2001:db8::1", "2001:DB8::2",
		"::ffff:192.0.2.1", "sha256:" + strings.Repeat("0", 64), ""}
	for _, key := range []string{"{header.X-Key}", "{remote_ip}", "{client_ip}", "all"} {
		for _, ipv4 := range []string{"32", "24"} {
			t.Run(key+"/"+ipv4, func(t *testing.T) {
				newHandler := func(form string) *handler {
					c := &Config{Other: Settings{"dsn": dsn, "timeout": "30s", "onError": "deny",
						"prefix": t.Name() + form, "key": key, "ipv4Prefix": ipv4, "limit": "1000000 1h",
						"algorithm": "fixed_window", "lease": "5%", "cost": "3"}}
					return newMiddleware(t, t.Context(), shared, &passCounter{}, c)
				}
				queued, leased := newHandler("queued"), newHandler("leased")
				if leased.leased == nil {
					t.Fatal("leased is nil, want a leasedZone")
				}
				queued.leased = nil
				// The header does not count units in transit between the row and the store. It is exact
				// without such units.
				isExact := false
				admitted := leased.leased.admitted
				for n := 0; atomic.LoadInt64(admitted) < 200 || !isExact; n++ {
					if n == 20000 {
						t.Fatalf("%d requests decided by leases, the last one exact: %v; want 200 and true",
							*admitted, isExact)
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
						t.Fatalf("request %d of %s, %q: status %d, the queue's %d; want 200", n, address,
							header, got.Code, want.Code)
					}
					if !slices.Equal(headerNames(got.Header()), headerNames(want.Header())) ||
						got.Header().Get("X-Ratelimit-Limit") != "1000000" ||
						want.Header().Get("X-Ratelimit-Limit") != "1000000" {
						t.Fatalf("request %d of %s, %q: headers %q, want the names of %q", n, address, header,
							got.Header(), want.Header())
					}
					remaining, _ := strconv.Atoi(got.Header().Get("X-Ratelimit-Remaining"))
					wantRemaining, _ := strconv.Atoi(want.Header().Get("X-Ratelimit-Remaining"))
					isExact = remaining == wantRemaining
					// The bound is 5 % of the limit.
					if difference := remaining - wantRemaining; difference < -50000 || difference > 50000 {
						t.Fatalf("request %d of %s, %q: %d left, want about %d", n, address, header,
							remaining, wantRemaining)
					}
					reset, _ := strconv.Atoi(got.Header().Get("X-Ratelimit-Reset"))
					wantReset, _ := strconv.Atoi(want.Header().Get("X-Ratelimit-Reset"))
					// The first hits of the rows are not at the same time.
					if difference := reset - wantReset; difference < -5 || difference > 5 {
						t.Fatalf("request %d of %s, %q: reset %d, want about %d", n, address, header,
							reset, wantReset)
					}
				}
			})
		}
	}
}
