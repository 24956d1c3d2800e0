package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"reflect"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// outcome is the output of internal/hammer.
type outcome struct {
	Admitted []int64
	Refused  int64
	Seconds  float64
	Errors   []string
}

// hammer runs internal/hammer until it ends.
func hammer(ctx context.Context, path string, args ...string) (*outcome, error) {
	out, err := exec.CommandContext(ctx, path, args...).Output()
	if err != nil {
		said := ""
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			said = string(exit.Stderr)
		}
		return nil, fmt.Errorf("hammer %q: %w: %s", args, err, said)
	}
	o := new(outcome)
	if err := json.Unmarshal(out, o); err != nil {
		return nil, err
	}
	if len(o.Errors) > 0 {
		return nil, fmt.Errorf("hammer %q: the store reports %q", args, o.Errors)
	}
	return o, nil
}

func buildHammer(t *testing.T) string {
	t.Helper()
	return harness.Build(t, ".", "./internal/hammer")
}

// TestProcessesShareALimit sends hits from three processes at once, to 50 keys, with costs
// from 1 to 5. Each key gets more hits of cost 1 than can pass. So some of them are refused,
// and the whole quota is used.
func TestProcessesShareALimit(t *testing.T) {
	path := buildHammer(t)
	forEachKind(t, func(t *testing.T, algorithm, limit string, durable bool) {
		dsn := cluster.Open(t)
		const keys, costs, processes = 50, 5, 3
		// Of each cost, one more than fills the quota by itself.
		hits := keys * costs * (quota/processes + 1)
		outcomes := make([]*outcome, processes)
		errs := make([]error, processes)
		var wait sync.WaitGroup
		for i := range processes {
			wait.Add(1)
			go func() {
				defer wait.Done()
				outcomes[i], errs[i] = hammer(t.Context(), path, "-dsn", dsn, "-algorithm", algorithm, "-limit", limit,
					"-durable="+strconv.FormatBool(durable), "-keys", strconv.Itoa(keys), "-costs", strconv.Itoa(costs),
					"-hits", strconv.Itoa(hits), "-callers", "64", "-first", strconv.Itoa(i*keys))
			}()
		}
		wait.Wait()
		admitted := make([]int64, keys)
		for i := range processes {
			if errs[i] != nil {
				t.Fatal(errs[i])
			}
			for key, n := range outcomes[i].Admitted {
				admitted[key] += n
			}
		}
		for key, n := range admitted {
			if n != quota {
				t.Errorf("key %d: admitted %d of %d", key, n, quota)
			}
		}
		checkNoDeadlock(t, dsn)
	})
}

// TestStoresShareALimit does the same from two stores of one process: many
// callers, one key, under the race detector.
func TestStoresShareALimit(t *testing.T) {
	forEachKind(t, func(t *testing.T, algorithm, limit string, durable bool) {
		dsn := cluster.Open(t)
		read, err := edge.ReadLimit(reflect.ValueOf(edge.LimitSettings{Prefix: "shared", Algorithm: algorithm, Limit: limit, Durable: strconv.FormatBool(durable)}))
		if err != nil {
			t.Fatal(err)
		}
		l := &read.Limit
		const callers, each = 64, 8
		admitted := make([]int64, callers)
		errs := make([]error, callers)
		stores := []ratelimit.Store{openStore(t, dsn), openStore(t, dsn)}
		var wait sync.WaitGroup
		for c := range callers {
			wait.Add(1)
			go func() {
				defer wait.Done()
				decisions := make([]ratelimit.Decision, 1)
				for range each {
					hits := []ratelimit.Hit{{Limit: l, Key: "key", Cost: 1}}
					if errs[c] = stores[c%2].Take(context.Background(), time.Minute, hits, decisions); errs[c] != nil {
						return
					}
					if decisions[0].Allowed {
						admitted[c]++
					}
				}
			}()
		}
		wait.Wait()
		sum := int64(0)
		for c := range callers {
			if errs[c] != nil {
				t.Fatal(errs[c])
			}
			sum += admitted[c]
		}
		if sum != quota {
			t.Errorf("admitted %d of %d", sum, quota)
		}
	})
}

// checkNoDeadlock expects that no two transactions waited for each other.
func checkNoDeadlock(t *testing.T, dsn string) {
	t.Helper()
	if n := queryInt(t, dsn, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"); n != 0 {
		t.Errorf("Postgres has seen %d deadlocks", n)
	}
}

// openStore returns a store on the database, which is closed at the end of the test. A
// failure in the background fails the test.
func openStore(t *testing.T, dsn string) ratelimit.Store {
	t.Helper()
	db, err := pgxdb.Open(dsn, pgxdb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	store, err := postgres.New(db, postgres.Options{OnError: func(err error) { t.Errorf("the store reports: %v", err) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	return store
}
