package traefikplugin

import (
	"maps"
	"math/rand/v2"
	"net"
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

// A handler with leases responds like a handler that sends all requests to the queue. Each handler has a row
// of its own. The requests never use up the quota. Near its end the handlers could respond differently.
func TestLeaseDecidesLikeQueue(t *testing.T) {
	dsn := cluster.Open(t)
	random := seed.New(t)
	for _, key := range []string{"{header.X-Key}", "{remote_ip}", "{client_ip}", "all"} {
		for _, ipv4 := range []string{"32", "24"} {
			t.Run(key+"/"+ipv4, func(t *testing.T) {
				newHandler := func(form string) *handler {
					c := &Config{Other: Settings{"dsn": dsn, "timeout": "30s", "onError": "deny",
						"prefix": t.Name() + form, "key": key, "ipv4Prefix": ipv4, "limit": "1000000 1h",
						"algorithm": "fixed_window", "lease": "5%", "cost": "3"}}
					return newMiddleware(t, t.Context(), shared, &passCounter{}, c)
				}
				queued, leased := newHandler("queued"), leasedZoneOf(newHandler("leased"))
				if leased == nil {
					t.Fatal("leased is nil, want a leasedZone")
				}
				// While units are on their way between the row and the lease, X-RateLimit-Remaining leaves
				// them out. The loop ends after a response without such units.
				isExact := false
				admitted := leased.admitted
				for n := 0; atomic.LoadInt64(admitted) < 200 || !isExact; n++ {
					if n == 20000 {
						t.Fatalf("%d requests decided by leases, the last one exact: %v; want 200 and true",
							*admitted, isExact)
					}
					isExact = sameResponses(t, queued, leased, random)
				}
			})
		}
	}
}

// sameResponses sends a random request to two handlers, and fails the test unless leased responds as queued.
// sameResponses reports whether the remaining quotas are equal.
func sameResponses(t *testing.T, queued, leased http.Handler, random *rand.Rand) bool {
	addresses := []string{"192.0.2.1", "192.0.2.77", "2001:db8::1", "2001:DB8::2", "::ffff:192.0.2.1"}
	values := append([]string{"a", "A", "x:y", "sha256:" + strings.Repeat("0", 64), ""}, addresses...)
	address := net.JoinHostPort(addresses[random.IntN(len(addresses))], "80")
	header := []string{values[random.IntN(len(values))]}
	if random.IntN(20) == 0 { // few requests have the header twice
		header = append(header, values[random.IntN(len(values))])
	}
	other := random.IntN(20) == 0 // another middleware has written the header in lower case
	var responses []http.Header
	for _, h := range []http.Handler{queued, leased} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.RemoteAddr, r.Header["X-Key"] = address, header
		if other {
			r.Header["x-key"] = []string{"b"}
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if w.Code != http.StatusOK || w.Header().Get("X-Ratelimit-Limit") != "1000000" {
			t.Fatalf("%s, %q: status %d, headers %q, want 200 and the limit", address, header, w.Code,
				w.Header())
		}
		responses = append(responses, w.Header())
	}
	want, got := responses[0], responses[1]
	if !slices.Equal(headerNames(got), headerNames(want)) {
		t.Fatalf("%s, %q: headers %q, want the names of %q", address, header, got, want)
	}
	difference := func(name string) int {
		a, _ := strconv.Atoi(got.Get(name))
		b, _ := strconv.Atoi(want.Get(name))
		return a - b
	}
	// The lease has at most 5 % of the limit. The first hits of the rows are not at the same time.
	const maxUnits, maxSeconds = 50000, 5
	units, seconds := difference("X-Ratelimit-Remaining"), difference("X-Ratelimit-Reset")
	if max(units, -units) > maxUnits || max(seconds, -seconds) > maxSeconds {
		t.Fatalf("%s, %q: headers %q, want %d left and %d s at most beside %q", address, header, got,
			maxUnits, maxSeconds, want)
	}
	return units == 0
}
