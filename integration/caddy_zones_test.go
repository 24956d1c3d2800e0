package integration

import (
	"net/http"
	"strconv"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// zonedRoute has two limits on each request: 10 for each user, and 15 for all.
func zonedRoute() caddyRoute {
	return caddyRoute{"/*", []string{`pg_ratelimit {
	timeout 1m
	on_error deny
	zone user {
		key {header.X-User}
		limit 10 1m
	}
	zone all {
		key everybody
		limit 15 1m
	}
}`}}
}

const (
	zonedUsers  = 3
	zonedQuota  = 15
	zonedWindow = time.Minute
)

// zonedRequest is the ith request, of one user after the other, to one Caddy
// after the other.
func zonedRequest(caddies []*caddy, i int) *http.Request {
	return harness.Get(caddies[i/zonedUsers%len(caddies)].url, "X-User", strconv.Itoa(i%zonedUsers))
}

func TestZonesAreAllOrNothing(t *testing.T) {
	for _, c := range []struct {
		name               string
		caddies, clients   int
		requests, admitted int // admitted is 0 where there is only a bound: zonedQuota
	}{
		{"one after the other", 1, 1, 30, zonedQuota},
		{"at once", 1, 30, 30, zonedQuota},
		{"at once, from two processes", 2, 30, 30, zonedQuota},
		// Here a user's limit refuses requests, too.
		{"more than each user may", 1, 60, 60, 0},
		{"more than each user may, from two processes", 2, 60, 60, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			began := time.Now()
			dsn := cluster.Open(t)
			caddies := startCaddies(t, c.caddies, dsn, zonedRoute())
			result := harness.Run(t.Context(), harness.Load{Clients: c.clients, Requests: c.requests,
				Request: func(i int) *http.Request { return zonedRequest(caddies, i) }})
			if err := result.Err(); err != nil {
				t.Fatal(err)
			}
			admitted := result.Status[200]
			if admitted+result.Status[429] != c.requests || admitted > zonedQuota || c.admitted > 0 && admitted != c.admitted {
				t.Errorf("%v; want %d×200 and 429 for the rest", result, zonedQuota)
			}
			checkCharges(t, dsn, admitted)

			// Refused requests have used no quota: single requests use the rest.
			for i := range zonedUsers * 10 {
				if harness.Ask(t, zonedRequest(caddies, i)).Status == 200 {
					admitted++
				}
			}
			if admitted != zonedQuota {
				t.Errorf("%d admitted after one more request for each place, want %d", admitted, zonedQuota)
			}
			checkCharges(t, dsn, admitted)
			if took := time.Since(began); took >= zonedWindow {
				t.Errorf("took %v: the window has turned, so the counts above may be wrong", took)
			}
		})
	}
}

// checkCharges expects that both zones are charged for the requests that passed, and for
// no others.
func checkCharges(t *testing.T, dsn string, admitted int) {
	t.Helper()
	for _, prefix := range []string{"user", "all"} {
		if n := counted(t, dsn, "rate_limit_ephemeral", prefix, 0); n != int64(admitted) {
			t.Errorf("%d charged to %s, want %d", n, prefix, admitted)
		}
	}
}
