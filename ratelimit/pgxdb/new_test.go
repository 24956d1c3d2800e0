package pgxdb_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// program is a DB on a pool of the program, which closes the pool after the DB.
type program struct {
	*pgxdb.DB
	pool *pgxpool.Pool
}

func (p program) Close() {
	p.DB.Close()
	go p.pool.Close() // waits for the calls under way
}

func TestStatementsOnThePoolOfAProgram(t *testing.T) {
	t.Parallel()
	conformance.Statements(t, func(t testing.TB, dsn string) postgres.DB {
		pool, err := pgxpool.New(context.Background(), dsn)
		if err != nil {
			t.Fatal(err)
		}
		db, err := pgxdb.New(pool)
		if err != nil {
			t.Fatal(err)
		}
		return program{db, pool}
	})
}

func TestThePoolOfAProgramStaysOpen(t *testing.T) {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, cluster.Open(t)+"&pool_max_conns=3")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	db, err := pgxdb.New(pool)
	if err != nil {
		t.Fatal(err)
	}
	if db.MaxConns() != 3 {
		t.Errorf("the DB has %d connections, want the 3 of the pool", db.MaxConns())
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
			t.Fatalf("%+v, %v; want %v", d, err, want)
		}
	}
	store.Close()
	if err := db.Exec(ctx, "SELECT 1"); err == nil {
		t.Error("the DB is used after the store is closed")
	}
	var one int
	if err := pool.QueryRow(ctx, "SELECT 1").Scan(&one); err != nil || one != 1 {
		t.Errorf("the program cannot use its pool any more: %v", err)
	}
}

func TestAPoolThatCannotServeIsRefused(t *testing.T) {
	var field *ratelimit.FieldError
	if _, err := pgxdb.New(nil); !errors.As(err, &field) || field.Field != "pool" {
		t.Errorf("no pool: %v", err)
	}
	pool, err := pgxpool.New(context.Background(), cluster.Open(t)+"&client_encoding=LATIN1")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	db, err := pgxdb.New(pool)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Exec(context.Background(), "SELECT 1"); err == nil || !strings.Contains(err.Error(), "client_encoding LATIN1, must have UTF8") {
		t.Errorf("connections with LATIN1: %v", err)
	}
}
