package integration

import (
	"context"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// TestInventedKeysCostFewStatements sends as many invented keys as the machine can. For each
// proxy the database gets at most 200 statements a second because of them, as its log shows,
// and users with real keys are served.
func TestInventedKeysCostFewStatements(t *testing.T) {
	const seconds = 4
	server := cluster.Private(t, cluster.Options{Config: map[string]string{"log_statement": "all"}})
	dsn := server.DSN("postgres")
	key, insert := newKey(t, 1, "alice")
	execute(t, dsn, schema.File)
	execute(t, dsn, people+insert)
	lookUps := func() int {
		log, err := os.ReadFile(server.LogFile())
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(log), "FROM unnest($1::text[]) AS a(digest) JOIN rate_limit_api_keys")
	}
	for _, url := range governedProxies(t, dsn) {
		before := lookUps()
		if a := harness.Ask(t, harness.Get(url+"/", "Authorization", key)); a.Status != http.StatusOK {
			t.Fatalf("%s answers %d to a real key", url, a.Status)
		}
		if n := lookUps() - before; n != 1 {
			t.Fatalf("%d statements looked up a key, want 1", n)
		}
		before = lookUps()
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), seconds*time.Second)
		r := harness.Run(ctx, harness.Load{Clients: 128, Request: func(i int) *http.Request {
			invented := key
			if i%10 > 0 { // every tenth is a user's
				var err error
				if invented, err = policy.NewKey(); err != nil {
					t.Error(err)
				}
			}
			return harness.Get(url+"/", "Authorization", "Bearer "+invented)
		}})
		cancel()
		took := time.Since(began)
		if err := r.Err(); err != nil {
			t.Error(err)
		}
		invented := r.Status[http.StatusUnauthorized]
		if off := r.Status[http.StatusOK] - r.Sent/10; invented < 1000 || r.Status[http.StatusOK]+invented != r.Sent || off < -1 || off > 1 {
			t.Errorf("%s: %v, want a tenth of 200 and the rest of 401", url, r)
		}
		n := lookUps() - before
		if n > int(200*took.Seconds())+2 || n < 1 || n > invented/2 {
			t.Errorf("%s: %d statements in %v for %d invented keys, want at most 200 a second, and many keys in each", url, n, took, invented)
		}
		t.Logf("%s: %d statements in %v for %d invented keys", url, n, took, invented)
	}
}
