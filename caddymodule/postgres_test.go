package caddymodule_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
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

func TestCountsAreInPostgres(t *testing.T) {
	dsn := cluster.Open(t)
	c := start(t, `
		{
			pg_ratelimit {
				dsn `+dsn+`
				max_conns 2
			}
		}
		:PORT {
			pg_ratelimit PREFIX {
				key {header.X-User}
				limit 3 1m
				algorithm fixed_window
				timeout 10s
				zone PREFIX_kept {
					key {header.Authorization}
					limit 100 1h
					algorithm fixed_window
					cost 5
					durable
					synchronous_commit
				}
			}
		}`)
	await.Within(t, 10*time.Second, "the tables are made without a request", func() bool { return tables(t, dsn) == 2 })
	for range 3 {
		c.expect(http.StatusOK, "/", "X-User", "ann", "Authorization", "hunter2")
	}
	a := c.expect(http.StatusTooManyRequests, "/", "X-User", "ann", "Authorization", "hunter2")
	if !tooMany.MatchString(a.body) {
		t.Errorf("body %q", a.body)
	}
	if n := query[int](t, dsn, "SELECT count FROM rate_limit_ephemeral WHERE prefix = $1 AND key = 'ann'", c.prefix()); n != 3 {
		t.Errorf("ann has %d, want 3", n)
	}
	if n := query[int](t, dsn, "SELECT count FROM rate_limit_durable WHERE prefix = $1 AND key = $2", c.prefix()+"_kept", ratelimit.DigestKey("hunter2")); n != 15 {
		t.Errorf("the key's digest has %d in the other table, want 15", n)
	}
	if n := query[int](t, dsn, "SELECT (SELECT count(*) FROM rate_limit_durable) + (SELECT count(*) FROM rate_limit_ephemeral)"); n != 2 {
		t.Errorf("%d rows, want 2", n)
	}
	if n := cluster.Connections(t, dsn); n < 1 || n > 2 {
		t.Errorf("%d connections, want 1 or 2", n)
	}
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

func TestMigrationCanBeSwitchedOff(t *testing.T) {
	const site = `
		{
			pg_ratelimit {
				dsn %s
				%s
			}
		}
		:PORT {
			pg_ratelimit PREFIX {
				limit 1 1m
				on_error deny
				timeout 10s
			}
		}`
	t.Run("by configuration", func(t *testing.T) {
		dsn := cluster.Open(t)
		c := start(t, fmt.Sprintf(site, dsn, "auto_migrate off"))
		c.expect(http.StatusServiceUnavailable, "/")
		if n := tables(t, dsn); n != 0 {
			t.Errorf("%d tables", n)
		}
		// A changed option takes effect at once, though the DSN is the same.
		c.load(fmt.Sprintf(site, dsn, "auto_migrate on"))
		c.expect(http.StatusOK, "/")
		c.expect(http.StatusTooManyRequests, "/")
	})
	t.Run("by the environment", func(t *testing.T) {
		t.Setenv("PG_RATELIMIT_DISABLE_AUTO_MIGRATE", "true")
		t.Setenv("DATABASE_URL", cluster.Open(t))
		c := start(t, strings.Replace(fmt.Sprintf(site, "", ""), "dsn", "", 1))
		c.expect(http.StatusServiceUnavailable, "/")
	})
}

// A response without a decision comes 50ms after the timeout at the latest. One in ten may take longer,
// because the machine may be busy.
const (
	timeout  = 250 * time.Millisecond
	lateness = 50 * time.Millisecond
	longest  = timeout + 2*time.Second
)

const twoPolicies = `
	{
		pg_ratelimit {
			dsn %s
		}
	}
	http://allow.test:PORT {
		pg_ratelimit PREFIX_allow {
			limit 3 10m
			algorithm fixed_window
		}
	}
	http://deny.test:PORT {
		pg_ratelimit PREFIX_deny {
			limit 3 10m
			algorithm fixed_window
			on_error deny
		}
	}
	http://plain.test:PORT {
		respond ok
	}`

// A config loads while its database is down. When the database is up, the limits hold.
func TestDatabaseDownAtLoad(t *testing.T) {
	server := cluster.Private(t, cluster.Options{})
	dsn := server.DSN("postgres")
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	c := start(t, fmt.Sprintf(twoPolicies, dsn))
	checkPolicies(t, c)
	if err := server.Restart(context.Background()); err != nil {
		t.Fatal(err)
	}
	checkRecovery(t, c)
	if len(c.lines("the database answers again")) == 0 {
		t.Error("the recovery is not logged")
	}
}

// While Caddy runs, the database ends and starts again, and then hangs and continues.
func TestDatabaseFailsWhileServing(t *testing.T) {
	server := cluster.Private(t, cluster.Options{})
	c := start(t, fmt.Sprintf(twoPolicies, server.DSN("postgres")))
	await.Within(t, 10*time.Second, "a decision", func() bool { return c.get("/", "Host", "deny.test").status == http.StatusOK })
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	checkPolicies(t, c)
	if err := server.Restart(context.Background()); err != nil {
		t.Fatal(err)
	}
	checkRecovery(t, c)
	if err := server.Pause(); err != nil {
		t.Fatal(err)
	}
	c.load(strings.ReplaceAll(fmt.Sprintf(twoPolicies, server.DSN("postgres")), "PREFIX", "PREFIX_2"))
	checkPolicies(t, c)
	if err := server.Resume(); err != nil {
		t.Fatal(err)
	}
	checkRecovery(t, c)
}

// checkPolicies makes many concurrent requests, for which there is no decision. Beside each of them,
// a request without a limit begins when the timeout ends: if that is late, so is the machine.
func checkPolicies(t *testing.T, c *live) {
	t.Helper()
	var wg sync.WaitGroup
	var late atomic.Int32
	for i := range 100 {
		wg.Go(func() {
			host, want := "allow.test", http.StatusOK
			if i%2 == 1 {
				host, want = "deny.test", http.StatusServiceUnavailable
			}
			time.Sleep(time.Duration(i) * 5 * time.Millisecond) // the load, spread out
			plain := make(chan time.Duration, 1)
			go func() {
				began := time.Now()
				time.Sleep(timeout)
				if a, err := c.tryAgain("/", "Host", "plain.test"); err != nil || a.status != http.StatusOK {
					t.Errorf("without a limit: %v, status %d", err, a.status)
				}
				plain <- time.Since(began)
			}()
			a, err := c.tryAgain("/", "Host", host)
			if err != nil || a.status != want || a.took > longest {
				t.Errorf("%s: %v, status %d after %v, want %d within %v", host, err, a.status, a.took, want, timeout+lateness)
			}
			if a.took > <-plain+lateness {
				late.Add(1)
			}
		})
	}
	wg.Wait()
	if n := late.Load(); n > 10 {
		t.Errorf("%d of 100 answers came %v later than requests without a limit after %v", n, lateness, timeout)
	}
}

// checkRecovery waits until both limits hold.
func checkRecovery(t *testing.T, c *live) {
	t.Helper()
	began := time.Now()
	await.Within(t, 10*time.Second, "limits hold again", func() bool {
		return c.get("/", "Host", "deny.test").status == http.StatusTooManyRequests && c.get("/", "Host", "allow.test").status == http.StatusTooManyRequests
	})
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("limits hold after %v, want 2s", took)
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
	await.Within(t, 10*time.Second, "as many goroutines as before", func() bool {
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

func TestAChangedDSNTakesEffect(t *testing.T) {
	const site = `
		:PORT {
			pg_ratelimit PREFIX {
				dsn %s
				limit 2 10m
				timeout 10s
				on_error deny
			}
		}`
	first, second := cluster.Open(t), cluster.Open(t)
	c := start(t, fmt.Sprintf(site, first))
	c.expect(http.StatusOK, "/")
	c.load(fmt.Sprintf(site, second))
	c.expect(http.StatusOK, "/")
	c.expect(http.StatusOK, "/")
	c.expect(http.StatusTooManyRequests, "/")
	c.load(fmt.Sprintf(site, first))
	c.expect(http.StatusOK, "/")
	c.expect(http.StatusTooManyRequests, "/")
	// The same as key=value pairs, from a placeholder.
	u, err := url.Parse(first)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PG_RATELIMIT_TEST_PAIRS", fmt.Sprintf("host=%s port=%s dbname=%s user=%s sslmode=disable",
		u.Hostname(), u.Port(), strings.TrimPrefix(u.Path, "/"), u.User.Username()))
	c.load(fmt.Sprintf(site, "{env.PG_RATELIMIT_TEST_PAIRS}"))
	c.expect(http.StatusTooManyRequests, "/")
}
