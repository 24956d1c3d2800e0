package schema_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/sqltest"
)

// later returns the migration of a later version: one more numbered file, and what is made again with
// replaced texts. An empty file adds none.
func later(t *testing.T, file string, replaced ...string) string {
	t.Helper()
	n := readNumbered(t, sqlFiles(t))
	if file != "" {
		n.add("0099_later.sql", file, file)
	}
	repeated := commands(t, again...)
	for i := 0; i < len(replaced); i += 2 {
		if !strings.Contains(repeated, replaced[i]) {
			t.Fatalf("no file has %q", replaced[i])
		}
		repeated = strings.ReplaceAll(repeated, replaced[i], replaced[i+1])
	}
	return n.upgrade(t, schema.ThisRevision+1, repeated)
}

// thingsSQL is one more table of the policy, with a trigger, and a condition of rules.
const thingsSQL = `-- restricts: countries
CREATE TABLE rate_limit_things (thing text PRIMARY KEY);
--;
ALTER TABLE rate_limit_rules ADD COLUMN countries text[];
--;
`

// thingsTrigger is the trigger, which is made again by each upgrade.
const thingsTrigger = `CREATE OR REPLACE TRIGGER rate_limit_log_insert AFTER INSERT ON rate_limit_things
	EXECUTE FUNCTION rate_limit_log_changes();
--;
`

// dropSQL and otherResult give a function another result.
const dropSQL = "DROP FUNCTION IF EXISTS rate_limit_key_forms(text[]);\n--;\n"

var otherResult = []string{"rate_limit_key_forms(texts text[]) RETURNS text[]",
	"rate_limit_key_forms(texts text[]) RETURNS name[]"}

// usersSQL is what users build on the tables.
const usersSQL = `CREATE VIEW of_a_user AS SELECT * FROM rate_limit_used;
	CREATE FUNCTION own_budget() RETURNS SETOF rate_limit_users LANGUAGE sql BEGIN ATOMIC
		SELECT * FROM rate_limit_users; END;
	CREATE FUNCTION own_tier() RETURNS text LANGUAGE sql AS 'SELECT tier FROM rate_limit_users LIMIT 1';
	CREATE TABLE orders (user_id text REFERENCES rate_limit_users);
	INSERT INTO orders VALUES ('ann');
	` + byHand

// byHand are rights that an owner changes, and undone changes them back.
const (
	byHand = `GRANT SELECT ON rate_limit_prices TO PUBLIC;
		REVOKE EXECUTE ON FUNCTION rate_limit_decimal FROM PUBLIC;`
	undone = `REVOKE SELECT ON rate_limit_prices FROM PUBLIC;
		GRANT EXECUTE ON FUNCTION rate_limit_decimal TO PUBLIC;`
)

// stateOf returns the error of this program on the tables, and whether it is outdated or they are newer.
func stateOf(t *testing.T, s *sqltest.DB) (state schema.State, err error) {
	t.Helper()
	state, parseErr := schema.ParseState([]byte(s.Query(schema.StateSQL)))
	if parseErr != nil {
		t.Fatal(parseErr)
	}
	return state, state.Err()
}

// A later version upgrades these tables, and its tables are those of a new database. What users have built on
// them, rows, ids and grants stay. This program goes on, and changes nothing, also with schema.sql.
func TestLaterVersionsUpgradeAndKeep(t *testing.T) {
	for name, version := range map[string]string{
		"one more table with triggers": later(t, thingsSQL, "SELECT rate_limit_ledger_upkeep();\n",
			thingsTrigger+"SELECT rate_limit_ledger_upkeep();\n"),
		"only a body changed": later(t, "", "least(coalesce(sum(v), 0),",
			"least(0 + coalesce(sum(v), 0),"),
		"a function with another result": later(t, dropSQL, otherResult...),
	} {
		t.Run(name, func(t *testing.T) {
			s, fresh := sqltest.New(t), sqltest.Open(t, version)
			s.Exec(usersSQL)
			const ids = `SELECT string_agg(concat(c.oid, c.relacl), ',' ORDER BY c.oid) FROM pg_class c
				WHERE c.relname LIKE 'rate\_limit\_%' AND c.relname NOT LIKE 'rate\_limit\_things%'`
			const rows = "SELECT tier, (SELECT count(*) FROM orders), (SELECT count(*) FROM own_budget()), " +
				"own_tier() FROM rate_limit_users ORDER BY 1"
			wantIDs, wantRows := s.Query(ids), s.Query(rows)
			s.Exec(schema.Lock + version)
			check.Equal(t, "ids and grants", s.Query(ids), wantIDs)
			check.Equal(t, "rows", s.Query(rows), wantRows)
			s.Expect("SELECT has_function_privilege('public', 'rate_limit_decimal(bigint, text)', 'EXECUTE')",
				"f")
			s.Exec("DROP VIEW of_a_user; DROP FUNCTION own_budget, own_tier; DROP TABLE orders;" + undone)
			fresh.Exec(byHand + undone)
			upgraded := s.Query(sqltest.CatalogSQL)
			if want := fresh.Query(sqltest.CatalogSQL); upgraded != want {
				t.Errorf("an upgrade and a new database differ:\n%s", sqltest.DifferingLines(upgraded, want))
			}
			if state, err := stateOf(t, s); err != nil || !state.Newer() {
				t.Errorf("this program on later tables: %+v, %v, want a newer revision and no error", state,
					err)
			}
			s.Exec(schema.File + schema.Create)
			check.Equal(t, "the catalog after schema.sql of this version", s.Query(sqltest.CatalogSQL),
				upgraded)
			countHit(t, s.OpenDB("")).Close()
			s.Exec("ALTER TABLE rate_limit_users DISABLE TRIGGER rate_limit_log_insert")
			if _, err := stateOf(t, s); !errors.Is(err, schema.ErrRestoring) {
				t.Errorf("with a trigger disabled: %v, want ErrRestoring", err)
			}
		})
	}
}

// An upgrade that fails names what it made and the mend, and has changed nothing. It never drops what is of a
// user. If the tables have several owners, or another one than the session, it names them and the commands.
func TestFailedUpgradesNameTheMend(t *testing.T) {
	drop := later(t, dropSQL, otherResult...)
	shown := ""
	for _, test := range []struct{ name, before, version string }{
		{"a function with another result", "", later(t, "", otherResult...)},
		{"a view of a user", "CREATE VIEW mine AS SELECT rate_limit_key_forms('{a}')", drop},
		{"another owner", "ALTER TABLE rate_limit_bans OWNER TO pg_monitor", drop},
		{"made before 0.1.0", "DROP FUNCTION rate_limit_about", drop},
	} {
		s := sqltest.New(t)
		me := s.Query("SELECT current_user")
		s.Exec(test.before)
		before := s.Query(sqltest.CatalogSQL)
		failure := s.ExpectError(test.version)
		got := []string{failure.Message, failure.Detail, failure.Hint}
		got = slices.DeleteFunc(got, func(text string) bool { return text == "" })
		text := strings.ReplaceAll(strings.Join(got, ". "), me, "ME")
		shown += test.name + "\n\t" + text + "\n"
		check.Equal(t, test.name+": the catalog", s.Query(sqltest.CatalogSQL), before)
		if failure.Code == "" {
			t.Errorf("%s: no SQLSTATE", test.name)
		}
	}
	golden.Check(t, "testdata/failed_upgrades.lines", shown)
}

// A later version may say that older programs must not go on. This program then refuses the tables, until the
// contract is taken back.
func TestContractStopsOlderPrograms(t *testing.T) {
	const file = "-- oldest program: 99\nALTER TABLE rate_limit_bans ADD COLUMN by_whom text;\n--;\n"
	s := sqltest.Open(t, later(t, file))
	err := schema.Look(t.Context(), s.OpenDB(""))
	const want = "the tables are of another version: they have the number 99, and this program needs an " +
		"older one, since they need a program of the number 99 or later, and this one has "
	if !errors.Is(err, schema.ErrVersion) || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("got %v, want %s…", err, want)
	}
	s.Exec(sqltest.Says(`"oldest": 99`, `"oldest": 1`))
	if err := schema.Look(t.Context(), s.OpenDB("")); err != nil {
		t.Errorf("after the contract is taken back: %v, want no error", err)
	}
}

// An upgrade by a superuser, or by a member of the owner, runs as the owner, so that all has one owner.
func TestUpgradeRunsAsTheOwner(t *testing.T) {
	s := sqltest.Open(t)
	owner := createRole(t, s, "owner_")
	s.Exec("GRANT CREATE ON SCHEMA public TO " + owner + "; SET ROLE " + owner + ";" + schema.File +
		"RESET ROLE")
	s.Exec(later(t, "CREATE TABLE rate_limit_things (thing text PRIMARY KEY);\n--;\n"))
	s.Expect(`SELECT DISTINCT relowner::regrole FROM pg_class WHERE relname LIKE 'rate\_limit\_%'
		UNION SELECT DISTINCT proowner::regrole FROM pg_proc WHERE proname LIKE 'rate\_limit\_%'`, owner)
	s.Expect("SELECT to_regclass('rate_limit_things') IS NOT NULL, current_user <> '"+owner+"'", "t t")
}
