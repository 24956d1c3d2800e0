package integration

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/admin/migrate"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/citus"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

var citusBin = flag.String("citus", "", "the folder of the programs of a Postgres with Citus")

// While shards move between workers, a Caddy and a Traefik together admit exactly the quota of each of 6
// users. The counters of the users are in 8 shards.
func TestACaddyAndATraefikShareALimitOnCitus(t *testing.T) {
	if *citusBin == "" {
		t.Skip("make test-citus runs this")
	}
	const shards, users, quota, perProxy = 8, 6, 500, 300
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	servers := startCitus(t, ctx, 3, shards)
	urls := bothProxies(t, servers.DSN(), "", object{"prefix": "both", "key": "{header.X-User}",
		"algorithm": "fixed_window", "limit": "500 1h"})

	done := make(chan *harness.Result)
	go func() {
		done <- harness.Run(t.Context(), harness.Load{Clients: 24, Requests: 2 * users * perProxy,
			Request: func(i int) *http.Request {
				return harness.Get(urls[[]string{"caddy", "traefik"}[i/users%2]], "X-User",
					fmt.Sprint("user", i%users))
			}})
	}()
	var result *harness.Result
	moves, moved := 0, 0
	for result == nil {
		select {
		case result = <-done:
		default:
			// Moving a shard to the worker that has it fails.
			shard, worker := fmt.Sprint("rl_s", moves%shards), (moves+moves/shards)%3
			if err := servers.Move(ctx, shard, worker); err == nil {
				moved++
			} else if ctx.Err() != nil {
				t.Fatal(err)
			}
			moves++
			time.Sleep(300 * time.Millisecond) // for requests between moves
		}
	}
	if err := result.Err(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d moves of shards; responses: %v", moved, result)
	var passed, refused [users]int
	for i := range result.Replies {
		switch result.Replies[i].Status {
		case http.StatusOK:
			passed[i%users]++
		case http.StatusTooManyRequests:
			refused[i%users]++
		}
	}
	for user := range users {
		if passed[user] != quota || passed[user]+refused[user] != 2*perProxy {
			t.Errorf("user%d: %d requests passed and %d were refused, want %d and %d", user, passed[user],
				refused[user], quota, 2*perProxy-quota)
		}
	}
}

// startCitus starts a Citus cluster with workers, and distributes the counters over shards.
func startCitus(t *testing.T, ctx context.Context, workers, shards int) *citus.Servers {
	t.Helper()
	servers, err := citus.Start(ctx, citus.Options{BinDir: *citusBin, Workers: workers})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := servers.Stop(); err != nil {
			t.Error(err)
		}
	})
	conn := cluster.Connect(t, servers.DSN())
	defer conn.Close(ctx)
	if _, err := migrate.Run(ctx, conn, shards); err != nil {
		t.Fatal(err)
	}
	return servers
}
