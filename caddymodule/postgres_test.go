package caddymodule_test

import (
	"context"
	"fmt"
	"net/http"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// query returns the value that a query gives.
func query[T any](t *testing.T, dsn, sql string, args ...any) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn := cluster.Watch(t, ctx, dsn)
	defer conn.Close(ctx)
	var value T
	if err := conn.QueryRow(ctx, sql, args...).Scan(&value); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

// tables is how many of the two tables exist.
func tables(t *testing.T, dsn string) int {
	return query[int](t, dsn, "SELECT count(*) FROM pg_class WHERE relname IN ('rate_limit_ephemeral', 'rate_limit_durable')")
}

// `caddy validate` must not change a database.
func TestValidatingTouchesNoDatabase(t *testing.T) {
	dsn := cluster.Open(t)
	config, err := adapt(":8080 {\n\tpg_ratelimit demo {\n\t\tdsn " + dsn + "\n\t\tlimit 1 1m\n\t}\n}\n")
	if err != nil {
		t.Fatal(err)
	}
	if err := validate(config); err != nil {
		t.Fatal(err)
	}
	// There is no event to wait for.
	time.Sleep(200 * time.Millisecond)
	if n := cluster.Connections(t, dsn) + tables(t, dsn); n != 0 {
		t.Errorf("%d tables and connections", n)
	}
}

// No goroutine and no connection is left after many reloads, and no request fails.
func TestManyReloads(t *testing.T) {
	dsn := cluster.Open(t)
	const site = `
		:PORT {
			pg_ratelimit PREFIX {
				dsn %s
				limit 1000000 1m
				algorithm fixed_window
				on_error deny
				timeout 10s
			}
			respond "%d"
		}`
	c := start(t, fmt.Sprintf(site, dsn, 0))
	c.expect(http.StatusOK, "/")

	stop := make(chan struct{})
	passed := make([]int, 4)
	var wg sync.WaitGroup
	for i := range passed {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				a, err := c.try("/")
				switch {
				case harness.Unheard(err):
				case err != nil || a.status != http.StatusOK:
					t.Errorf("%v, status %d, %s", err, a.status, a.body)
					return
				default:
					passed[i]++
				}
			}
		})
	}
	c.load(fmt.Sprintf(site, dsn, 1))
	before := 0
	for i := range 50 {
		c.load(fmt.Sprintf(site, dsn, i))
		if i == 10 {
			before = runtime.NumGoroutine()
		}
	}
	close(stop)
	wg.Wait()
	await.Within(t, time.Minute, "as many goroutines as before", func() bool {
		client.CloseIdleConnections()
		return runtime.NumGoroutine() <= before+5
	})
	total := 1
	for _, n := range passed {
		total += n
	}
	if n := query[int](t, dsn, "SELECT count FROM rate_limit_ephemeral"); n != total {
		t.Errorf("counted %d, passed %d", n, total)
	}
	if n := cluster.Connections(t, dsn); n > 8 {
		t.Errorf("%d connections", n)
	}
}
