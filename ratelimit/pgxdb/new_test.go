package pgxdb_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// poolDB is a DB on a program's pool. Close also closes the pool.
type poolDB struct {
	*pgxdb.DB
	pool *pgxpool.Pool
}

func (d poolDB) Close() {
	d.DB.Close()
	go d.pool.Close() // waits for the calls under way
}

// openPool opens the pool of a program, and a DB on it.
func openPool(t testing.TB, dsn string) poolDB {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	db, err := pgxdb.New(pool)
	if err != nil {
		t.Fatal(err)
	}
	return poolDB{db, pool}
}

// A DB on a program's pool passes the conformance suite of statements.
func TestStatementsOnProgramPool(t *testing.T) {
	t.Parallel()
	conformance.Statements(t, func(t testing.TB, dsn string) pgdb.DB {
		return openPool(t, dsn)
	})
}

// Close of a store, and of its DB, leaves the pool of the program open.
func TestProgramPoolStaysOpen(t *testing.T) {
	ctx := t.Context()
	d := openPool(t, cluster.Open(t)+"&pool_max_conns=3")
	defer d.pool.Close()
	db, pool := d.DB, d.pool
	if n := db.MaxConns(); n != 3 {
		t.Errorf("MaxConns() = %d, want 3 as in the pool", n)
	}
	store, err := postgres.New(db, postgres.Options{})
	if err != nil {
		t.Fatal(err)
	}
	limiter, err := ratelimit.NewLimiter(store, ratelimit.Limit{Prefix: "api", Events: 1, Window: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	limiter.Timeout = time.Minute
	for _, want := range []bool{true, false} {
		if d, err := limiter.Take(ctx, "user:123", 1); err != nil || d.Allowed != want {
			t.Fatalf("Take: %+v, error %v, want Allowed %v", d, err, want)
		}
	}
	store.Close()
	if err := db.Exec(ctx, time.Minute, "SELECT 1"); err == nil {
		t.Error("Exec after the store was closed succeeds, want an error")
	}
	var one int
	if err := pool.QueryRow(ctx, "SELECT 1").Scan(&one); err != nil || one != 1 {
		t.Errorf("the pool after the store was closed: error %v, %d, want 1", err, one)
	}
}

// New refuses a missing pool. A pool with a client_encoding other than UTF8 fails at its first use, with an
// error that names the encoding.
func TestUnusablePoolIsRefused(t *testing.T) {
	if _, err := pgxdb.New(nil); conformance.FieldOf(err) != "pool" {
		t.Errorf("New(nil): error %v, want a FieldError for pool", err)
	}
	d := openPool(t, cluster.Open(t)+"&client_encoding=LATIN1")
	defer d.Close()
	err := d.Exec(t.Context(), time.Minute, "SELECT 1")
	if !strings.Contains(fmt.Sprint(err), "client_encoding LATIN1, must have UTF8") {
		t.Errorf("Exec in LATIN1: error %v, want it to name client_encoding LATIN1", err)
	}
}

// At opens connections with the hooks of the program's pool. In this test, a hook sets the password, without
// which logins fail.
func TestAtConnectsLikeProgramPool(t *testing.T) {
	if testing.Short() {
		t.Skip("make test-all runs it: it starts a server")
	}
	ctx := t.Context()
	server := cluster.Private(t, cluster.Options{HBA: "local all all trust\n" +
		"host all changing 127.0.0.1/32 scram-sha-256\nhost all all 127.0.0.1/32 trust\n"})
	admin := cluster.Connect(t, server.DSN("postgres"))
	if _, err := admin.Exec(ctx, "CREATE ROLE changing LOGIN PASSWORD 'token'"); err != nil {
		t.Fatal(err)
	}
	config, err := pgxpool.ParseConfig(fmt.Sprintf(
		"host=127.0.0.1 port=%d user=changing dbname=postgres sslmode=disable", server.Port()))
	if err != nil {
		t.Fatal(err)
	}
	config.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error {
		c.Password = "token"
		return nil
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	db, err := pgxdb.New(pool)
	if err != nil {
		t.Fatal(err)
	}
	shard, err := db.At("127.0.0.1", server.Port())
	if err != nil {
		t.Fatal(err)
	}
	defer shard.Close()
	if err := shard.Exec(ctx, time.Minute, "SELECT 1"); err != nil {
		t.Errorf("Exec with the program's password: error %v, want nil", err)
	}
}
