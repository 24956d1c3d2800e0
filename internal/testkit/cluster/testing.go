package cluster

import (
	"context"
	"crypto/rand"
	"encoding/hex"
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
)

// TestDSN is the environment variable that names a server for Open to use
// instead of a private one: an address, as a URL, of an account that may
// create databases. What a killed test leaves there nobody removes.
const TestDSN = "PG_RATELIMIT_TEST_DSN"

// testTimeout bounds each single thing that a test waits for here.
const testTimeout = 2 * time.Minute

// shared is the cluster of this test process, started by the first Open. Its
// leash ends it with the process, so it takes no TestMain.
var shared = sync.OnceValues(func() (*Cluster, error) {
	// Installing a server may come first.
	ctx, cancel := context.WithTimeout(context.Background(), 5*testTimeout)
	defer cancel()
	return Shared(ctx)
})

// Shared starts a temporary cluster for many tests. It gives up everything that
// makes a crash survivable for speed.
func Shared(ctx context.Context) (*Cluster, error) {
	return Start(ctx, Options{Config: map[string]string{
		"fsync":            "off",
		"full_page_writes": "off",
		"max_connections":  "500",
		"max_wal_size":     "128MB", // of memory, see inMemory
	}})
}

// Open makes a fresh database and returns its DSN. It is empty, or a copy of a
// database in which the SQL has run: a copy takes milliseconds. The database is
// dropped at the test's end, connections or no. All tests of a process share
// one cluster, and all tests of a run with package shared: a test that kills its
// server takes Private.
func Open(t testing.TB, sql ...string) string {
	t.Helper()
	admin := adminDSN(t)
	name, err := databaseName(t.Name())
	if err != nil {
		t.Fatal(err)
	}
	dsn, err := withDatabase(admin, name)
	if err != nil {
		t.Fatal(err)
	}
	from, err := template(admin, strings.Join(sql, "\n"))
	if err != nil {
		t.Fatal(err)
	}
	how, err := copyStrategy(admin)
	if err != nil {
		t.Fatal(err)
	}
	if err := execute(admin, "CREATE DATABASE "+name+" TEMPLATE "+from+how); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := execute(admin, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)"); err != nil {
			t.Error(err)
		}
	})
	return dsn
}

// adminDSN is the DSN of an account that may create databases.
func adminDSN(t testing.TB) string {
	t.Helper()
	if dsn := os.Getenv(TestDSN); dsn != "" {
		return dsn
	}
	c, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	return c.DSN("postgres")
}

// Private starts a cluster of the test's own, to stop, kill or pause. Its data
// outlives Stop and Kill, and is removed at the test's end. It has fsync off,
// unless o says otherwise: what a killed server has written the machine still
// has, and no test waits for a slow disk.
func Private(t testing.TB, o Options) *Cluster {
	t.Helper()
	config := map[string]string{"fsync": "off"}
	maps.Copy(config, o.Config)
	o.Config = config
	ctx, cancel := context.WithTimeout(context.Background(), 5*testTimeout)
	defer cancel()
	c, err := start(ctx, o, untilEnd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.remove(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// watcher is the application_name of the sessions that only look.
const watcher = "watcher"

// Watch connects to a database to look at it, and leaves it to the caller to
// close. Connections does not count it: its end may still be seen when the next
// one looks.
func Watch(t testing.TB, ctx context.Context, dsn string) *pgx.Conn {
	t.Helper()
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	config.RuntimeParams["application_name"] = watcher
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// Connections is the number of connections to a database, without those of Watch.
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
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

// Execute runs SQL text without parameters, on a connection that Connections does not count.
func Execute(t testing.TB, dsn, sql string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	conn := Watch(t, ctx, dsn)
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, sql); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

// Query returns the one value that a query gives, on a connection that Connections does not count.
func Query[T any](t testing.TB, dsn, sql string, args ...any) (value T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	conn := Watch(t, ctx, dsn)
	defer conn.Close(ctx)
	if err := conn.QueryRow(ctx, sql, args...).Scan(&value); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

// Texts returns the rows of a query with one column of texts, on a connection that Connections does not
// count.
func Texts(t testing.TB, dsn, sql string, args ...any) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	conn := Watch(t, ctx, dsn)
	defer conn.Close(ctx)
	rows, err := conn.Query(ctx, sql, args...)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return all
}

// execute runs one statement on a connection of its own.
func execute(dsn, sql string) error {
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	defer cancel()
	conn, err := pgx.Connect(ctx, dsn)
	if err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, sql); err != nil {
		return fmt.Errorf("cluster: %s: %w", sql, err)
	}
	return nil
}

// Tool is a program that comes with the server, such as pg_dump. Where the server comes without it,
// as that of the npm package, the test is skipped.
func Tool(t testing.TB, name string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*testTimeout)
	defer cancel()
	bin, err := Binaries(ctx, "", os.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	tool := filepath.Join(bin, name)
	if _, err := os.Stat(tool); err != nil {
		t.Skipf("the Postgres of %s comes without %s", bin, name)
	}
	return tool
}

var notInNames = regexp.MustCompile(`[^a-z0-9]+`)

// databaseName is a name that no other test has, and that needs no quotes.
func databaseName(test string) (string, error) {
	random := make([]byte, 6)
	if _, err := rand.Read(random); err != nil {
		return "", err
	}
	test = notInNames.ReplaceAllString(strings.ToLower(test), "_")
	if len(test) > 40 { // of the 63 that a name may have
		test = test[:40]
	}
	return "t_" + hex.EncodeToString(random) + "_" + test, nil
}

// withDatabase is a server's address with another database.
func withDatabase(dsn, database string) (string, error) {
	u, err := url.Parse(dsn)
	if err != nil || (u.Scheme != "postgres" && u.Scheme != "postgresql") {
		return "", fmt.Errorf("cluster: %s must be a URL: postgres://user@host:port/database", TestDSN)
	}
	u.Path = "/" + database
	return u.String(), nil
}

// Limited makes an account that may have only so many connections, and returns the DSN
// with which it uses a database. The account may create tables, and use those
// that exist. It is dropped at the test's end.
func Limited(t testing.TB, dsn string, connections int) string {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	role, err := databaseName("limited")
	if err != nil {
		t.Fatal(err)
	}
	u.User = url.UserPassword(role, role)
	for _, sql := range []string{
		fmt.Sprintf("CREATE ROLE %s LOGIN PASSWORD '%s' CONNECTION LIMIT %d", role, role, connections),
		"GRANT ALL ON SCHEMA public TO " + role,
		"GRANT ALL ON ALL TABLES IN SCHEMA public TO " + role,
	} {
		if err := execute(dsn, sql); err != nil {
			t.Fatal(err)
		}
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
