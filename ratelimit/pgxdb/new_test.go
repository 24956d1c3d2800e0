package pgxdb_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
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
	conformance.Statements(t, func(t testing.TB, dsn string) pgdb.DB {
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
	err = db.Exec(context.Background(), "SELECT 1")
	if err == nil || !strings.Contains(err.Error(), "client_encoding LATIN1, must have UTF8") {
		t.Errorf("connections with LATIN1: %v", err)
	}
}

// TestShardServersAreReachedLikeThePool by a program that gets a password for each connection.
func TestShardServersAreReachedLikeThePool(t *testing.T) {
	ctx := context.Background()
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
	traced := &tracer{}
	config.ConnConfig.Tracer = traced
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	db, err := pgxdb.New(pool)
	if err != nil {
		t.Fatal(err)
	}
	part, err := db.At("127.0.0.1", server.Port())
	if err != nil {
		t.Fatal(err)
	}
	defer part.Close()
	if err := part.Exec(ctx, "SELECT 1"); err != nil {
		t.Errorf("without what the program does before a connection: %v", err)
	}
	if traced.logins.Load() == 0 {
		t.Error("the program's tracer does not see the login")
	}
}

// tracer counts logins.
type tracer struct{ logins atomic.Int32 }

func (r *tracer) TraceConnectStart(ctx context.Context, _ pgx.TraceConnectStartData) context.Context {
	return ctx
}
func (r *tracer) TraceConnectEnd(context.Context, pgx.TraceConnectEndData) { r.logins.Add(1) }
func (r *tracer) TraceQueryStart(
	ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	return ctx
}
func (r *tracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
