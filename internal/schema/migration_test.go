package schema_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/admin/migrate"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/sqltest"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// libraryCollation matches the collation of a column that the npm library makes.
var libraryCollation = regexp.MustCompile(
	`(column rate_limit_(?:ephemeral|durable)(?:_pkey)?\.(?:prefix|key) .*COLLATE )"C"`)

// way is a way to make tables, and what is there before, by the names of befores.
type way struct {
	make    func(t *testing.T, s *sqltest.DB)
	befores []string
}

var (
	ways = map[string]way{
		"psql": {func(t *testing.T, s *sqltest.DB) {
			file := filepath.Join(t.TempDir(), "schema.sql")
			if err := os.WriteFile(file, []byte(schema.File), 0o600); err != nil {
				t.Fatal(err)
			}
			psql := exec.Command(cluster.Tool(t, "psql"), "-v", "ON_ERROR_STOP=1", "-qf", file, s.DSN)
			if out, err := psql.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}, []string{"nothing", "older"}},
		"one query": {func(t *testing.T, s *sqltest.DB) { s.Exec(schema.File) }, []string{"npm", "older"}},
		"postgres.TableSQL": {func(t *testing.T, s *sqltest.DB) { s.Exec(postgres.TableSQL) },
			[]string{"nothing"}},
		"migrate": {func(t *testing.T, s *sqltest.DB) { migrateOn(t, s.DSN) }, []string{"npm", "older"}},
		"a proxy": {func(t *testing.T, s *sqltest.DB) { countHit(t, s.OpenDB("")) },
			[]string{"nothing", "npm", "npm, a table is gone"}},
		"migrate, PgBouncer": {func(t *testing.T, s *sqltest.DB) { migrateOn(t, harness.Pooler(t, s.DSN)) },
			[]string{"nothing", "older"}},
		"a proxy, PgBouncer": {func(t *testing.T, s *sqltest.DB) {
			countHit(t, sqltest.Connect(t, harness.Pooler(t, s.DSN)).OpenDB(""))
		}, []string{"npm"}},
	}
	befores = map[string]string{"nothing": "", "npm": sqltest.LibraryTables,
		"npm, a table is gone": sqltest.LibraryTables + "DROP TABLE rate_limit_durable",
		"older": schema.File + sqltest.Older + "DROP VIEW rate_limit_near; COMMENT ON TABLE " +
			"rate_limit_rules IS 'The rules.'"}
)

// migrateOn runs the command migrate.
func migrateOn(t *testing.T, dsn string) {
	t.Helper()
	if _, err := migrate.Run(t.Context(), cluster.Connect(t, dsn), 0); err != nil {
		t.Fatal(err)
	}
}

// All ways make the same tables, in an empty database, over tables of the npm library, which keep their
// collation, and over functions of an older version. A second run of the file changes nothing, and loses no
// rows.
func TestEveryWayMakesSameTables(t *testing.T) {
	fromFile := sqltest.New(t)
	want := fromFile.Query(sqltest.CatalogSQL)
	fromFile.Exec(schema.File)
	if got := fromFile.Query(sqltest.CatalogSQL); got != want {
		t.Errorf("a second run of the file changes\n%s", sqltest.DifferingLines(got, want))
	}
	fromFile.Expect("SELECT count(*) FROM rate_limit_users", "2")
	npm := libraryCollation.ReplaceAllString(want, `${1}"default"`)
	for name, way := range ways {
		for _, before := range way.befores {
			t.Run(name+", "+before, func(t *testing.T) {
				if testing.Short() && strings.HasSuffix(name, "PgBouncer") {
					t.Skip("the long tests have a PgBouncer")
				}
				s, want := sqltest.Open(t, befores[before]), want
				if strings.HasPrefix(before, "npm") {
					want = npm
				}
				way.make(t, s)
				if got := s.Query(sqltest.CatalogSQL); got != want {
					t.Errorf("the tables and those of the file differ in\n%s",
						sqltest.DifferingLines(got, want))
				}
				countHit(t, s.OpenDB(""))
			})
		}
	}
}

// countHit takes a hit with a new store, and returns the store, which closes at the end of the test.
func countHit(t testing.TB, db pgdb.DB) *postgres.Store {
	t.Helper()
	store, err := postgres.New(db, postgres.Options{OnError: func(err error) { t.Error(err) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	hits := []ratelimit.Hit{{Limit: &ratelimit.Limit{Prefix: "p", Events: 5, Window: time.Hour},
		Key: "k", Cost: 1}}
	if err := store.Take(context.Background(), time.Minute, hits, make([]ratelimit.Decision, 1)); err != nil {
		t.Error(err)
	}
	return store
}

// The tables are in the first schema of the search_path. The functions find these tables in any session, and
// use no tables of their caller instead.
func TestTablesInAnotherSchema(t *testing.T) {
	s := sqltest.Open(t)
	s.Exec(`CREATE SCHEMA "a.Tenant"; SET search_path = "a.Tenant";` + schema.File + `RESET search_path;
		CREATE TEMPORARY TABLE rate_limit_metrics (x int);
		CREATE TEMPORARY TABLE rate_limit_retention (what text);
		SELECT "a.Tenant".rate_limit_rule('r', per_hour => 1)`)
	s.Expect(`SELECT count(*) FROM "a.Tenant".rate_limit_changes WHERE kind IN ('rule', 'limit')`, "2")
	s.Expect(`SELECT what, name FROM "a.Tenant".rate_limit_upkeep('2026-11-21') LIMIT 1`,
		`made "a.Tenant".rate_limit_audit_20261121`)
	s.Expect(`SELECT count(*) FROM "a.Tenant".rate_limit_drop_expired('2027-02-20') WHERE held_by IS NULL
		AND name ~ 'audit'`, "1")
	s.Expect("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", "0")
}

// An upgrade makes what is missing where the tables are, also if that is not the first schema of the
// search_path.
func TestUpgradeStaysInTheSchemaOfTheTables(t *testing.T) {
	s := sqltest.Open(t)
	s.Exec(`CREATE SCHEMA tenant; CREATE SCHEMA first; SET search_path = tenant;` + schema.File +
		sqltest.Older + `SET search_path = first, tenant;` + schema.File)
	s.Expect(`SELECT count(*) FROM pg_proc WHERE pronamespace = 'first'::regnamespace`, "0")
	s.Expect("SELECT "+schema.Revision, fmt.Sprint(schema.ThisRevision))
}

// On a server that is too old, a migration fails and creates no table.
func TestOldServerIsRefused(t *testing.T) {
	s := sqltest.Open(t)
	s.Exec(`CREATE FUNCTION public.current_setting(name text) RETURNS text LANGUAGE sql AS $$
		SELECT CASE name WHEN 'server_version_num' THEN '140023' ELSE '14.23' END $$;
		SET search_path = public, pg_catalog`)
	const want = "pg-ratelimit needs PostgreSQL 15 or newer, and this server is 14.23"
	if got := s.ExpectError(schema.Upgrade).Message; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	s.Expect(`SELECT count(*) FROM pg_tables WHERE tablename LIKE 'rate\_limit\_%'`, "0")
}

// The error of a migration by a role that may not create tables names schema.sql.
func TestMigrationWithoutPrivileges(t *testing.T) {
	s := sqltest.Open(t)
	s.Exec("REVOKE CREATE ON SCHEMA public FROM public")
	err := fmt.Sprint(schema.CreateTables(t.Context(), s.OpenDB(createRole(t, s, "c_"))))
	if !strings.Contains(err, "schema.sql") || !strings.Contains(err, "permission denied for schema public") {
		t.Errorf("CreateTables: error %s, want schema.sql and permission denied for schema public", err)
	}
}
