package schema_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// everything describes what the migration makes. The columns say whether they are NOT NULL: from
// Postgres 18 on, that is a constraint too, and its name does not matter.
const everything = `SELECT string_agg(line, E'\n' ORDER BY line) FROM (
	SELECT 'column ' || a.attrelid::regclass || '.' || a.attname || ' '
		|| format_type(a.atttypid, a.atttypmod) || ' ' || a.attnotnull || ' '
		|| coalesce(pg_get_expr(d.adbin, d.adrelid), '') AS line
		FROM pg_attribute a LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
		WHERE a.attrelid::regclass::text LIKE 'rate\_limit\_%' AND a.attnum > 0 AND NOT a.attisdropped
	UNION ALL SELECT 'constraint ' || conrelid::regclass || ' ' || conname || ' ' || pg_get_constraintdef(oid)
		FROM pg_constraint WHERE conrelid::regclass::text LIKE 'rate\_limit\_%' AND contype <> 'n'
	UNION ALL SELECT 'trigger ' || pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal
	UNION ALL SELECT 'function ' || pg_get_functiondef(oid) || coalesce(proacl::text, '') FROM pg_proc
		WHERE proname LIKE 'rate\_limit\_%' AND prokind = 'f'
	UNION ALL SELECT 'aggregate ' || a.aggfnoid || ' ' || a.aggtransfn || ' ' || coalesce(a.agginitval, '')
		FROM pg_aggregate a WHERE a.aggfnoid::text LIKE 'rate\_limit\_%'
	UNION ALL SELECT 'view ' || pg_get_viewdef(oid) FROM pg_class WHERE relkind = 'v'
		AND relname LIKE 'rate\_limit\_%'
	UNION ALL SELECT concat_ws(' ', 'table', relname, relpersistence, reloptions) FROM pg_class
		WHERE relkind IN ('r', 'p') AND relname LIKE 'rate\_limit\_%'
	UNION ALL SELECT 'index ' || pg_get_indexdef(indexrelid) FROM pg_index
		WHERE indrelid::regclass::text LIKE 'rate\_limit\_%'
	UNION ALL SELECT 'comment ' || classoid::regclass || ' ' || objsubid || ' ' || description
		FROM pg_description WHERE objoid >= 16384
) AS lines`

// A store, MigratePolicy and MigrateHistory make all tables, on an empty database and beside tables of counts
// that are there. The file does the same, and changes nothing if it runs again, nor does it lose
// rows.
func TestAllWaysLeadToTheSameTables(t *testing.T) {
	model := newSite(t)
	want := model.text(everything)
	model.exec(schema.File)
	if got := model.text(everything); got != want {
		t.Error("the file has changed the tables when it ran again")
	}
	model.want("SELECT count(*) FROM rate_limit_users", "2")
	for name, before := range map[string]string{
		"empty":                "",
		"counters":             schema.Counters,
		"npm":                  libraryTables,
		"npm, a table is gone": libraryTables + "DROP TABLE rate_limit_durable",
		"a table is gone":      schema.File + "DROP TABLE rate_limit_durable",
		"a column is gone":     schema.File + "ALTER TABLE rate_limit_ephemeral DROP COLUMN remainder",
		"an index is gone":     schema.File + "DROP INDEX idx_rate_limit_durable_cleanup",
		"all but the last command": schema.File +
			"DROP FUNCTION rate_limit_policy_version, rate_limit_history_version",
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			s.exec(before)
			db := s.db("")
			s.counts(db)
			if err := policy.Migrate(context.Background(), db); err != nil {
				t.Fatal(err)
			}
			if err := history.Migrate(context.Background(), db); err != nil {
				t.Fatal(err)
			}
			for until := time.Now().Add(time.Minute); s.text(
				everything) != want; time.Sleep(5 * time.Millisecond) {
				if time.Now().After(until) {
					t.Fatalf("the store has made\n%s\nwant\n%s", s.text(everything), want)
				}
			}
		})
	}
}

// counts has a store count a hit, and returns the store. It ends with the test.
func (s *site) counts(db pgdb.DB) *postgres.Store {
	s.t.Helper()
	store, err := postgres.New(db, postgres.Options{OnError: func(err error) { s.t.Error(err) }})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(store.Close)
	hits := []ratelimit.Hit{{Limit: &ratelimit.Limit{Prefix: "p", Events: 5, Window: time.Hour},
		Key: "k", Cost: 1}}
	if err := store.Take(context.Background(), time.Minute, hits, make([]ratelimit.Decision, 1)); err != nil {
		s.t.Error(err)
	}
	return store
}

// A newer proxy has made the tables: an older one leaves them as they are.
func TestANewerSchemaStays(t *testing.T) {
	s := newSite(t)
	s.exec("CREATE OR REPLACE FUNCTION rate_limit_policy_version() RETURNS int LANGUAGE sql IMMUTABLE AS " +
		"'SELECT 1000'")
	if err := policy.Migrate(context.Background(), s.db("")); err != nil {
		t.Fatal(err)
	}
	s.want("SELECT rate_limit_policy_version()", "1000")
}

// The tables lie in the first schema of the search_path, and their functions find them from
// anywhere.
func TestTablesInAnotherSchema(t *testing.T) {
	s := open(t)
	s.exec("CREATE SCHEMA tenant; SET search_path = tenant;" + schema.File + "RESET search_path; SELECT " +
		"tenant.rate_limit_rule('r', per_hour => 1)")
	s.want("SELECT count(*) FROM tenant.rate_limit_changes WHERE kind IN ('rule', 'limit')", "2")
	s.want("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'", "0")
}

// Every table, column, view and function says what it is for.
func TestEverythingHasAComment(t *testing.T) {
	s := newSite(t)
	s.exec("SELECT rate_limit_upkeep()")
	const counters = "('rate_limit_ephemeral', 'rate_limit_durable')"
	s.want(`SELECT c.oid::regclass FROM pg_class c WHERE c.relname LIKE 'rate\_limit\_%'
		AND c.relkind IN ('r', 'p', 'v') AND NOT c.relispartition AND c.relname NOT IN `+counters+`
		AND obj_description(c.oid, 'pg_class') IS NULL`, "")
	s.want(`SELECT a.attrelid::regclass || '.' || a.attname FROM pg_attribute a
		JOIN pg_class c ON c.oid = a.attrelid WHERE c.relname LIKE 'rate\_limit\_%'
		AND c.relkind IN ('r', 'p', 'v')
		AND c.relname NOT IN `+counters+` AND a.attnum > 0 AND NOT a.attisdropped
			AND col_description(a.attrelid, a.attnum) IS NULL`, "")
	s.want(`SELECT p.oid::regprocedure FROM pg_proc p WHERE p.proname LIKE 'rate\_limit\_%'
		AND obj_description(p.oid, 'pg_proc') IS NULL`, "")
}

// A store that counts makes the tables of counts and of the registry, and nothing else.
func TestALimitAloneMakesNoPolicy(t *testing.T) {
	s := open(t)
	s.counts(s.db("")).Close()
	s.want(`SELECT string_agg(relname, ' ' ORDER BY relname) FROM pg_class WHERE relname LIKE 'rate\_limit\_%'
		AND relkind IN ('r', 'p', 'v')`,
		"rate_limit_durable rate_limit_ephemeral rate_limit_nodes rate_limit_processes "+
			"rate_limit_proxies rate_limit_secrets rate_limit_state")
	s.want(`SELECT string_agg(proname, ' ' ORDER BY proname) FROM pg_proc
		WHERE proname LIKE 'rate\_limit\_%'`,
		"rate_limit_behind rate_limit_counter_key rate_limit_counter_tables rate_limit_counters "+
			"rate_limit_delete_counters rate_limit_forget_person rate_limit_key_forms rate_limit_reset "+
			"rate_limit_stored_keys rate_limit_usage_of")
}

// On a server that is too old nothing is made.
func TestAServerThatIsTooOldIsRefused(t *testing.T) {
	s := open(t)
	s.exec(`CREATE FUNCTION public.current_setting(name text) RETURNS text LANGUAGE sql AS $$
		SELECT CASE name WHEN 'server_version_num' THEN '140023' ELSE '14.23' END $$;
		SET search_path = public, pg_catalog`)
	for name, sql := range map[string]string{"counters": schema.Counters, "history": schema.History,
		"policy": schema.Policy} {
		if failure := s.fails(sql); failure.Message != "pg-ratelimit needs PostgreSQL 15 or newer, and "+
			"this server is 14.23" {
			t.Errorf("the %s: %v", name, failure)
		}
	}
	s.want(`SELECT count(*) FROM pg_tables WHERE tablename LIKE 'rate\_limit\_%'`, "0")
}

// A role that may not create the tables of the policy counts all the same.
func TestCountersWorkWithoutThePrivilegeForThePolicy(t *testing.T) {
	s := open(t)
	s.exec("REVOKE CREATE ON SCHEMA public FROM public;" + schema.Counters)
	role := "c_" + s.text("SELECT current_database()")
	s.exec("CREATE ROLE " + role + "; GRANT SELECT, INSERT, UPDATE, DELETE ON rate_limit_ephemeral, " +
		"rate_limit_durable TO " + role)
	t.Cleanup(func() { s.exec("DROP OWNED BY " + role + "; DROP ROLE " + role) })
	db := s.db(role)
	s.counts(db)
	if err := policy.Migrate(context.Background(), db); err == nil ||
		!strings.Contains(err.Error(), "schema.sql") ||
		!strings.Contains(err.Error(), "permission denied for schema public") {
		t.Errorf("MigratePolicy: %v", err)
	}
}
