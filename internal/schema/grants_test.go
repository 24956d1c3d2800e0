package schema_test

import (
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/sqltest"
)

// A migration grants recorded roles what they lack, in any schema, and for each part in a database of its
// own. A role that was dropped is no obstacle. What is taken back leaves nothing.
func TestMigrationGrantsAgain(t *testing.T) {
	for name, part := range map[string]struct{ sql, drop string }{
		"counters": {schema.Counters, "VIEW rate_limit_state"},
		"history":  {schema.History, "FUNCTION rate_limit_begin_batch, rate_limit_refused"},
		"all":      {schema.File, "FUNCTION rate_limit_forget, rate_limit_tier, rate_limit_upkeep"},
	} {
		t.Run(name, func(t *testing.T) {
			s := sqltest.Open(t)
			s.Exec(`CREATE SCHEMA "a.Tenant"; SET search_path = "a.Tenant"; ` + part.sql)
			roles := []string{}
			for _, kind := range []string{"proxy", "administrator", "reader"} {
				roles = append(roles, grantRole(t, s, kind))
			}
			rights := `SELECT pg_describe_object(classid, objid, objsubid), refobjid::regrole FROM pg_shdepend
				WHERE refobjid::regrole::text IN ('` + strings.Join(roles, "', '") + `') ORDER BY 1, 2`
			before := s.Query(rights)
			s.Exec("INSERT INTO rate_limit_grants VALUES ('nobody', 'reader'); DROP " + part.drop)
			if s.Query(rights) == before {
				t.Errorf("DROP %s takes no rights", part.drop)
			}
			s.Exec(part.sql)
			s.Expect(rights, before)
			s.Exec("SELECT rate_limit_revoke(role, kind) FROM rate_limit_grants")
			s.Expect(rights, "")
		})
	}
}

// Default privileges, such as Supabase's, let no role write who has rights, and the REVOKE of the sentence
// about the role takes the others back.
func TestDefaultPrivilegesAreNamed(t *testing.T) {
	s := sqltest.Open(t)
	role := createRole(t, s, "d_")
	s.Exec("ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO " + role + ", PUBLIC;" + schema.File)
	s.Exec("SET ROLE " + role)
	denied := s.ExpectError("INSERT INTO rate_limit_grants VALUES ('" + role + "', 'administrator')")
	s.Exec("RESET ROLE")
	if denied.Code != "42501" {
		t.Errorf("a write of rate_limit_grants ended with %v, want permission denied", denied)
	}
	sentences := strings.Split(s.Query("SELECT rate_limit_exposed()"), "\n")
	for _, sentence := range sentences {
		_, revoke, _ := strings.Cut(sentence, "back: ")
		s.Exec(revoke)
	}
	if len(sentences) != 3 { // PUBLIC may not read secrets anyway
		t.Errorf("the sentences are %q, want 3", sentences)
	}
	s.Expect("SELECT rate_limit_exposed()", "")
}

// A reader may see the page and the dashboards. The transcript shows that it may change nothing.
func TestReaderReads(t *testing.T) {
	s := sqltest.New(t)
	grantRole(t, s, "reader")
	golden.Replay(t, "testdata/roles/reader.txt", s.Replay)
}
