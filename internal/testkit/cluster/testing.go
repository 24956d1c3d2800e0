package cluster

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
)

// TestDSN is the environment variable with the URL of a server that Open uses instead of a private one. Its
// account may create databases. Nothing removes the databases of killed tests there.
const TestDSN = "PG_RATELIMIT_TEST_DSN"

// testTimeout bounds each wait of a test here.
const testTimeout = 2 * time.Minute

// shared starts the cluster of this test process. The cluster's leash stops it with the process, so no
// TestMain is needed.
var shared = sync.OnceValues(func() (*Cluster, error) {
	// The time includes the installation of a server.
	ctx, cancel := context.WithTimeout(context.Background(), 5*testTimeout)
	defer cancel()
	return Shared(ctx)
})

// Shared starts a temporary cluster for many tests. Its data does not survive a crash of the machine.
func Shared(ctx context.Context) (*Cluster, error) {
	return Start(ctx, Options{Config: map[string]string{
		"fsync":            "off",
		"full_page_writes": "off",
		"max_connections":  "500",
		"jit_above_cost":   "-1",    // compiling takes longer than the statements of tests
		"max_wal_size":     "128MB", // bounds the space that the log takes in /dev/shm
	}})
}

// Open creates a database and returns its DSN. The database is empty, or a copy of a database in which the
// SQL has run, which takes milliseconds. Open drops the database and its connections at the test's end. All
// tests of a process share one cluster. If the command shared runs the tests, all processes share one. A test
// that kills its server uses Private.
func Open(t testing.TB, sql ...string) string {
	t.Helper()
	AwaitDay()
	admin := adminDSN(t)
	name, err := databaseName(t.Name())
	check.OK(t, err)
	dsn, err := withDatabase(admin, name)
	check.OK(t, err)
	source, err := template(admin, strings.Join(sql, "\n"))
	check.OK(t, err)
	// A copy of the files takes a third of the CPU that a server needs to write each page to its log.
	check.OK(t, execute(admin, "CREATE DATABASE "+name+" TEMPLATE "+source+" STRATEGY FILE_COPY"))
	t.Cleanup(func() {
		if err := execute(admin, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"); err != nil {
			t.Error(err)
		}
	})
	return dsn
}

// AwaitDay sleeps in the last and in the first minute of a day in UTC, so that a short test runs within a
// day, with the rows that it dates some seconds back.
func AwaitDay() {
	const edge = time.Minute
	time.Sleep(time.Until(time.Now().Add(edge).Truncate(24 * time.Hour).Add(edge)))
}

// adminDSN returns the DSN of an account that may create databases.
func adminDSN(t testing.TB) string {
	t.Helper()
	if dsn := os.Getenv(TestDSN); dsn != "" {
		return dsn
	}
	c, err := shared()
	check.OK(t, err)
	return c.DSN("postgres")
}

// Private starts a cluster for one test, which may stop, kill or pause it. The data outlives Stop and Kill,
// and is removed at the test's end. fsync is off unless o sets it, so that no test waits for a slow disk.
func Private(t testing.TB, o Options) *Cluster {
	t.Helper()
	AwaitDay()
	config := map[string]string{"fsync": "off"}
	maps.Copy(config, o.Config)
	o.Config = config
	ctx, cancel := context.WithTimeout(context.Background(), 5*testTimeout)
	defer cancel()
	c, err := start(ctx, o, untilEnd)
	check.OK(t, err)
	t.Cleanup(func() {
		if err := c.remove(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// watcher is the application_name of sessions that tests use to watch a database.
const watcher = "watcher"

// Watch connects to a database to watch it. The caller closes the connection. Connections does not count such
// a connection, because its session may still be visible for a while after the caller has closed it.
func Watch(t testing.TB, ctx context.Context, dsn string) *pgx.Conn {
	t.Helper()
	config, err := pgx.ParseConfig(dsn)
	check.OK(t, err)
	config.RuntimeParams["application_name"] = watcher
	conn, err := pgx.ConnectConfig(ctx, config)
	check.OK(t, err)
	return conn
}

// Connections returns the number of connections to a database, except connections of Watch.
func Connections(t testing.TB, dsn string) int {
	t.Helper()
	return Query[int](t, dsn, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "+
		"AND application_name <> $1", watcher)
}

// Connect connects to a database until the test's end.
func Connect(t testing.TB, dsn string) *pgx.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	check.OK(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// Execute runs SQL without parameters, on a connection that Connections does not count. It runs the SQL again
// after a deadlock.
func Execute(t testing.TB, dsn, sql string) {
	t.Helper()
	watch(t, dsn, sql, func(ctx context.Context, conn *pgx.Conn) error { return Exec(ctx, conn, sql) })
}

// Exec runs SQL on a connection or a pool. It runs the SQL again after a deadlock with a program that uses
// the same tables.
func Exec[R any](ctx context.Context, conn interface {
	Exec(ctx context.Context, sql string, args ...any) (R, error)
}, sql string, args ...any) error {
	for {
		_, err := conn.Exec(ctx, sql, args...)
		var failure *pgconn.PgError
		if !errors.As(err, &failure) || failure.Code != "40P01" {
			return err
		}
	}
}

// Query returns the single value of a query's result. It uses a connection that Connections does not count.
func Query[T any](t testing.TB, dsn, sql string, args ...any) (value T) {
	t.Helper()
	watch(t, dsn, sql, func(ctx context.Context, conn *pgx.Conn) error {
		return conn.QueryRow(ctx, sql, args...).Scan(&value)
	})
	return value
}

// Texts returns the rows of a query with one text column. It uses a connection that Connections does not
// count.
func Texts(t testing.TB, dsn, sql string, args ...any) (texts []string) {
	t.Helper()
	watch(t, dsn, sql, func(ctx context.Context, conn *pgx.Conn) error {
		rows, err := conn.Query(ctx, sql, args...)
		if err == nil {
			texts, err = pgx.CollectRows(rows, pgx.RowTo[string])
		}
		return err
	})
	return texts
}

// watch runs SQL on a connection of Watch.
func watch(t testing.TB, dsn, sql string, run func(ctx context.Context, conn *pgx.Conn) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	conn := Watch(t, ctx, dsn)
	defer conn.Close(ctx)
	if err := run(ctx, conn); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// execute is like Run, with a timeout.
func execute(dsn, sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	return Run(ctx, dsn, sql)
}

// Run runs SQL without parameters, on a new connection. It runs the SQL again after a deadlock.
func Run(ctx context.Context, dsn, sql string) error {
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if err := Exec(ctx, conn, sql); err != nil {
		return fmt.Errorf("cluster: %s: %w", sql, err)
	}
	return nil
}

// Tool returns the path of a program that comes with the server, such as pg_dump. It skips the test if the
// server comes without the program, as in the npm package.
func Tool(t testing.TB, name string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*testTimeout)
	defer cancel()
	bin, err := Binaries(ctx, "", os.Stderr)
	check.OK(t, err)
	tool := filepath.Join(bin, name)
	if _, err := os.Stat(tool); err != nil {
		t.Skipf("the Postgres of %s comes without %s", bin, name)
	}
	return tool
}

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// databaseName returns a unique name that needs no quotes.
func databaseName(test string) (string, error) {
	random := make([]byte, 6)
	if _, err := rand.Read(random); err != nil {
		return "", err
	}
	test = notInNames.ReplaceAllString(strings.ToLower(test), "_")
	if len(test) > 40 { // a name may have 63 bytes
		test = test[:40]
	}
	return "t_" + hex.EncodeToString(random) + "_" + test, nil
}

// withDatabase returns dsn with another database.
func withDatabase(dsn, database string) (string, error) {
	u, err := url.Parse(dsn)
	if err != nil || (u.Scheme != "postgres" && u.Scheme != "postgresql") {
		return "", fmt.Errorf("cluster: %s must be a URL: postgres://user@host:port/database", TestDSN)
	}
	u.Path = "/" + database
	return u.String(), nil
}

// Limited creates an account with a bound on its connections, and returns its DSN for a database. The account
// may create tables, and use existing tables. Limited drops the account at the test's end.
func Limited(t testing.TB, dsn string, connections int) string {
	t.Helper()
	u, err := url.Parse(dsn)
	check.OK(t, err)
	role, err := databaseName("limited")
	check.OK(t, err)
	u.User = url.UserPassword(role, role)
	for _, sql := range []string{
		fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '%s' CONNECTION LIMIT %d", role, role, connections),
		"GRANT ALL ON SCHEMA public TO " + role,
		"GRANT ALL ON ALL TABLES IN SCHEMA public TO " + role,
	} {
		check.OK(t, execute(dsn, sql))
	}
	t.Cleanup(func() {
		for _, sql := range []string{"DROP OWNED BY " + role, "DROP ROLE " + role} {
			if err := execute(dsn, sql); err != nil {
				t.Error(err)
			}
		}
	})
	return u.String()
}
