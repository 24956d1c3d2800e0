package engine_test

import (
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// TestStatsOfAnOutage: a database that cannot be reached adds errors of connections while the
// outage lasts, also without requests.
func TestStatsOfAnOutage(t *testing.T) {
	t.Parallel()
	for name, open := range drivers.All {
		store := newStore(t, open(t, "postgres://u@127.0.0.1:1/db?sslmode=disable"), without)
		hit := ratelimit.Hit{Limit: &ratelimit.Limit{Prefix: "p", Events: 10, Window: time.Hour}, Key: "k", Cost: 1}
		if _, _, err := tryOne(store, time.Second, hit); err == nil {
			t.Fatalf("%s: a decision without a database", name)
		}
		before := store.Stats().Errors["connection"]
		await.Within(t, longTime, name+": more errors", func() bool { return store.Stats().Errors["connection"] >= before+2 })
	}
}
