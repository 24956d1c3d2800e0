package schema_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/sqltest"
)

// A migration grants recorded roles what they lack, in any schema. A role that was dropped is no obstacle.
// What is taken back leaves nothing.
func TestMigrationGrantsAgain(t *testing.T) {
	s := sqltest.Open(t)
	s.Exec(`CREATE SCHEMA "a.Tenant"; SET search_path = "a.Tenant"; ` + schema.File)
	roles := []string{}
	for _, kind := range []string{"proxy", "administrator", "reader"} {
		roles = append(roles, grantRole(t, s, kind))
	}
	rights := `SELECT pg_describe_object(classid, objid, objsubid), refobjid::regrole FROM pg_shdepend
		WHERE refobjid::regrole::text IN ('` + strings.Join(roles, "', '") + `') ORDER BY 1, 2`
	before := s.Query(rights)
	const drop = "DROP FUNCTION rate_limit_forget, rate_limit_tier, rate_limit_upkeep, " +
		"rate_limit_begin_batch, rate_limit_refused; DROP VIEW rate_limit_state;"
	s.Exec("INSERT INTO rate_limit_grants VALUES ('nobody', 'reader');" + drop + sqltest.Older)
	if s.Query(rights) == before {
		t.Errorf("%s takes no rights", drop)
	}
	s.Exec(schema.File)
	s.Expect(rights, before)
	s.Exec("SELECT rate_limit_revoke(role, kind) FROM rate_limit_grants")
	s.Expect(rights, "")
}

// Default privileges, such as Supabase's, give a role nothing: not what a migration makes, nor a function
// that it makes again, nor a partition of tomorrow. Functions that views call stay open to all roles.
func TestDefaultPrivilegesGiveNothing(t *testing.T) {
	s := sqltest.Open(t)
	role := createRole(t, s, "anon_")
	s.Exec("ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC")
	for _, kind := range []string{"TABLES", "SEQUENCES", "FUNCTIONS"} {
		s.Exec("ALTER DEFAULT PRIVILEGES GRANT ALL ON " + kind + " TO " + role +
			"; ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON " + kind + " TO " + role)
	}
	rights := `SELECT pg_describe_object(classid, objid, objsubid) FROM pg_shdepend
		WHERE refobjid = '` + role + `'::regrole AND classid IN ('pg_class'::regclass, 'pg_proc'::regclass)`
	s.Exec(schema.File)
	s.Exec("SELECT rate_limit_upkeep()")
	s.Expect(rights, "")
	s.Expect("SELECT rate_limit_exposed()", "")
	reader := grantRole(t, s, "reader")
	s.Exec("SET ROLE " + reader + "; SELECT * FROM rate_limit_state, rate_limit_policy(); RESET ROLE")

	tomorrow := s.Query("SELECT to_char((now() + interval '1 day') AT TIME ZONE 'UTC', 'YYYYMMDD')")
	s.Exec("DROP FUNCTION rate_limit_forget, rate_limit_upkeep, rate_limit_ledger_upkeep; DROP TABLE " +
		"rate_limit_ledger_" + tomorrow + ", rate_limit_metrics_hour_" + tomorrow)
	for range 2 { // the second run grants nothing, and keeps what was granted by hand
		s.Exec(sqltest.Older + schema.File)
		s.Exec("SELECT rate_limit_upkeep()")
		s.Expect(rights, "")
		s.Exec("GRANT SELECT ON rate_limit_users TO " + role)
		rights += " AND objid <> 'rate_limit_users'::regclass"
	}
	s.Expect("SELECT has_table_privilege('"+role+"', 'rate_limit_users', 'SELECT')", "t")
}

// Each role with rights that were granted later is named in one sentence, and its statement takes them back,
// but not what rate_limit_grant gave.
func TestLaterGrantsAreNamed(t *testing.T) {
	s := sqltest.New(t)
	s.Exec("SELECT rate_limit_upkeep()")
	reader, role := grantRole(t, s, "reader"), createRole(t, s, "anon_")
	today := s.Query("SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')")
	for _, grant := range []string{"SELECT ON rate_limit_ledger", "UPDATE (input) ON rate_limit_prices",
		"USAGE ON SEQUENCE rate_limit_bans_id_seq", "EXECUTE ON FUNCTION rate_limit_forget",
		"SELECT ON rate_limit_ledger_" + today, "SELECT (user_id) ON rate_limit_ledger_" + today,
		"SELECT ON rate_limit_key_states", "TRUNCATE ON rate_limit_audit",
		"ALL ON ALL TABLES IN SCHEMA public",
		"ALL ON ALL SEQUENCES IN SCHEMA public", "ALL ON ALL FUNCTIONS IN SCHEMA public"} {
		for _, to := range []string{role, "PUBLIC", reader} {
			held := "SELECT count(*) FROM rate_limit_surplus()"
			s.Exec("GRANT " + grant + " TO " + to)
			if to == reader && slices.Contains([]string{"SELECT ON rate_limit_ledger",
				"SELECT ON rate_limit_key_states"}, grant) {
				s.Expect(held, "0") // a reader may
				continue
			}
			sentence := s.Query("SELECT rate_limit_exposed()")
			name, statement, _ := strings.Cut(sentence, "back: ")
			if !strings.Contains(name, strings.ToLower(to)) || strings.Contains(statement, "\n") {
				t.Errorf("after GRANT %s TO %s: %q, want one sentence about the role", grant, to, sentence)
			}
			s.Exec(statement)
			s.Expect(held, "0")
		}
	}
	s.Exec("SET ROLE " + reader + "; SELECT count(*) FROM rate_limit_users, rate_limit_state; RESET ROLE")
	_ = s.ExpectError("SELECT rate_limit_revoke('" + role + "')")
}

// Rights that a role got through grant options of other roles, also on columns, are named and taken back with
// these options. What rate_limit_grant gave the other roles stays. What cannot be taken back is named.
func TestRightsFromOtherRolesAreTakenBack(t *testing.T) {
	s := sqltest.New(t)
	s.Exec("SELECT rate_limit_upkeep()")
	reader, b, c := grantRole(t, s, "reader"), createRole(t, s, "b_"), createRole(t, s, "c_")
	today := "rate_limit_ledger_" + s.Query("SELECT to_char(now() AT TIME ZONE 'UTC', 'YYYYMMDD')")
	before := s.Query("SELECT relacl FROM pg_class WHERE relname = 'rate_limit_users'")
	chain := func(right, column, kind, to string) string {
		return "GRANT " + right + " TO " + reader + " WITH GRANT OPTION; SET ROLE " + reader + "; GRANT " +
			right + " TO " + b + " WITH GRANT OPTION; SET ROLE " + b + "; GRANT " + column + " TO " + to +
			"; RESET ROLE; SELECT rate_limit_revoke('" + to + "'" + kind + ")"
	}
	for _, it := range []struct{ right, column string }{
		{"SELECT ON rate_limit_users", "SELECT ON rate_limit_users"},
		{"SELECT ON rate_limit_users", "SELECT (tier) ON rate_limit_users"},
		{"SELECT (user_id) ON rate_limit_ledger", "SELECT (user_id) ON rate_limit_ledger"},
		{"SELECT ON " + today, "SELECT (user_id) ON " + today},
		{"EXECUTE ON FUNCTION rate_limit_forget", "EXECUTE ON FUNCTION rate_limit_forget"},
		{"USAGE ON SEQUENCE rate_limit_bans_id_seq", "USAGE ON SEQUENCE rate_limit_bans_id_seq"},
	} {
		for _, to := range []string{c, "public"} {
			s.Exec(chain(it.right, it.column, "", to))
			s.Expect("SELECT * FROM rate_limit_surplus() WHERE role = '"+to+"'", "")
			if s.Query("SELECT count(*) FROM rate_limit_surplus() WHERE role = '"+reader+"'") != "0" {
				s.Exec("SELECT rate_limit_revoke('" + reader + "')")
			}
			s.Expect("SELECT * FROM rate_limit_surplus()", "")
		}
	}
	s.Expect("SELECT relacl FROM pg_class WHERE relname = 'rate_limit_users'", before)

	s.Exec("SELECT rate_limit_grant('" + c + "', 'reader')")
	s.Exec(chain("SELECT ON rate_limit_users", "SELECT ON rate_limit_users", ", 'reader'", c))
	s.Expect("SELECT has_table_privilege('"+c+"', 'rate_limit_users', 'SELECT')", "f")
	s.Exec("GRANT SELECT ON rate_limit_users TO " + reader + " WITH GRANT OPTION")
	if got := s.Query("SELECT rate_limit_exposed()"); !strings.Contains(got,
		"role "+reader+" may SELECT WITH GRANT OPTION on rate_limit_users, ") {
		t.Errorf("%q, want the grant option", got)
	}
	message := s.ExpectError(strings.Replace(chain("SELECT ON rate_limit_users", "SELECT ON rate_limit_users",
		"", c), "RESET ROLE", "RESET ROLE; ALTER ROLE "+b+" SUPERUSER", 1)).Message
	if want := "it keeps SELECT on rate_limit_users from " + b + ", which"; !strings.Contains(message, want) {
		t.Errorf("%q, want %q", message, want)
	}
}

// A reader may see the page and the dashboards. The transcript shows that it may change nothing.
func TestReaderReads(t *testing.T) {
	s := sqltest.New(t)
	grantRole(t, s, "reader")
	golden.Replay(t, "testdata/roles/reader.txt", s.Replay)
}
