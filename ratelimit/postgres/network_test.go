package postgres_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/slownet"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// TestEveryRequestIsDecidedOverAWideNetwork: with the default timeout of 250 ms, every request
// is decided once there is a connection: of three limits, which may take two round trips, over
// 50 ms, and of one limit over 80 ms. That includes the first request on each algorithm, when no
// connection knows its statement, and a request after a pause.
func TestEveryRequestIsDecidedOverAWideNetwork(t *testing.T) {
	for name, open := range drivers.All {
		for _, roundTrip := range []time.Duration{10 * time.Millisecond, 50 * time.Millisecond, 80 * time.Millisecond} {
			t.Run(fmt.Sprint(name, " over ", roundTrip), func(t *testing.T) {
				t.Parallel()
				_, dsn := slownet.ListenFor(t, cluster.Open(t), roundTrip)
				db := open(t, dsn)
				// A cleanup would use the connection, and a login takes four round trips.
				store, err := postgres.New(db, postgres.Options{CleanupProbability: -1})
				if err != nil {
					t.Fatal(err)
				}
				defer store.Close()
				take := func(timeout time.Duration, limits ...*ratelimit.Limit) error {
					var hits []ratelimit.Hit
					for _, l := range limits {
						hits = append(hits, ratelimit.Hit{Limit: l, Key: "k", Cost: 1})
					}
					return store.Take(context.Background(), timeout, hits, make([]ratelimit.Decision, len(hits)))
				}
				limit := func(a ratelimit.Algorithm, zone string, events int64) *ratelimit.Limit {
					return &ratelimit.Limit{Prefix: zone + a.String(), Algorithm: a, Events: events, Window: time.Hour}
				}
				if err := take(longTime, limit(ratelimit.SlidingWindow, "first", 1)); err != nil {
					t.Fatal(err) // connects, and creates the tables
				}
				for _, a := range conformance.Algorithms() {
					zones := []*ratelimit.Limit{limit(a, "a", 100), limit(a, "b", 100), limit(a, "c", 3)}
					requests := 4 // the last one is refused
					if roundTrip > 50*time.Millisecond {
						requests = 0
					}
					for n := range requests {
						if err := take(ratelimit.DefaultTimeout, zones...); err != nil {
							t.Errorf("%s: request %d of three limits: %v", a, n, err)
						}
					}
					if err := take(ratelimit.DefaultTimeout, limit(a, "alone", 100)); err != nil {
						t.Errorf("%s: a request of one limit: %v", a, err)
					}
				}
				// By default pgx takes a round trip to ping a connection that was idle for a second.
				time.Sleep(1050 * time.Millisecond)
				if err := take(ratelimit.DefaultTimeout, limit(ratelimit.GCRA, "alone", 100)); err != nil {
					t.Errorf("after a pause: %v", err)
				}
			})
		}
	}
}
