package schema_test

import (
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	counts "github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/store/registry"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/sqltest"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// createRole creates a role without privileges, named by a prefix and the database. The end of the test drops
// it.
func createRole(t testing.TB, s *sqltest.DB, prefix string) string {
	t.Helper()
	role := prefix + s.Query("SELECT current_database()")
	s.Exec("CREATE ROLE " + role)
	t.Cleanup(func() { s.Exec("RESET ROLE; DROP OWNED BY " + role + "; DROP ROLE " + role) })
	return role
}

// grantRole creates a role of a kind, named by the first letter of the kind and the database.
func grantRole(t testing.TB, s *sqltest.DB, kind string) string {
	t.Helper()
	role := createRole(t, s, kind[:1]+"_")
	s.Exec("SELECT rate_limit_grant('" + role + "', '" + kind + "')")
	return role
}

// An administrator changes the policy, and proxies apply it, count, and report their progress. The
// transcripts testdata/roles/*.txt show that the roles allow no more than that.
func TestRolesSufficeAndAllowNoMore(t *testing.T) {
	s := sqltest.New(t)
	s.Exec("REVOKE CREATE ON SCHEMA public FROM public")
	proxy := grantRole(t, s, "proxy")
	grantRole(t, s, "administrator")
	db := s.OpenDB(proxy)
	var reported []string
	node := &registry.Node{Name: "n1", Epoch: 1}
	store, err := counts.Open(s.OpenDB(proxy), engine.Options{
		CleanupProbability: 1, OnError: func(err error) { t.Error(err) },
	}, node)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	store.Prepare()
	p := policy.New(db, policy.Settings{
		Refresh: -1, Health: store.Health(), OnApplied: node.SetApplied,
		OnError: func(err error) { reported = append(reported, err.Error()) },
	})
	defer p.Close()
	ctx := context.Background()
	if err := p.Refresh(ctx); err != nil {
		t.Fatal(err)
	}

	golden.Replay(t, "testdata/roles/administrator.txt", s.Replay)
	if err := p.Refresh(ctx); err != nil {
		t.Fatal(err)
	}
	facts := policy.Facts{Tier: "anonymous", Path: "/", Method: "GET"}
	var verdict policy.Verdict
	err = p.Evaluate(ctx, time.Minute, "ann", "", &facts, &verdict)
	if err != nil || len(verdict.Hits) != 1 || verdict.Hits[0].Limit.Events != 5 {
		t.Fatalf("Evaluate: %v, %+v; want one hit on a limit of 5", err, verdict)
	}
	if err := store.Take(ctx, time.Minute, verdict.Hits, make([]ratelimit.Decision, 1)); err != nil {
		t.Error(err)
	}
	golden.Replay(t, "testdata/roles/proxy.txt", s.Replay)
	const rowSQL = "SELECT concat(node, ' ', epoch, ' ', behind = 0) FROM rate_limit_proxies"
	if err := p.Refresh(ctx); err != nil {
		t.Fatal(err)
	}
	await.Within(t, time.Minute, "the registry to have n1 1 t",
		func() bool { return s.Query(rowSQL) == "n1 1 t" })
	store.Close()
	s.Expect("SELECT count(*) FROM rate_limit_nodes WHERE ended IS NULL", "0")
	if len(reported) > 0 {
		t.Errorf("the policy reported %q, want nothing", reported)
	}
}

// A function that writes with the rights of its owner ignores temporary tables of its caller.
func TestTemporaryTablesReplaceNoTables(t *testing.T) {
	s := sqltest.New(t)
	s.Exec("SET ROLE " + grantRole(t, s, "administrator"))
	s.Exec(`CREATE TEMPORARY TABLE rate_limit_changes (kind text, ref text, by text,
		before jsonb, after jsonb);
		INSERT INTO public.rate_limit_tiers (tier) VALUES ('gold')`)
	s.Exec("RESET ROLE")
	s.Expect("SELECT (SELECT count(*) FROM pg_temp.rate_limit_changes), (SELECT count(*) FROM "+
		"public.rate_limit_changes WHERE ref = 'gold')", "0 1")
}

// docs/security.md lists exactly the functions that run with the rights of their owner, and for each whether
// a proxy and an administrator may call it. A reader may call none of them: the last column. The transcript
// bounds shows that a role can destroy or create only what the documents say.
func TestWhatEachRoleMayCall(t *testing.T) {
	s := sqltest.New(t)
	s.Exec("REVOKE CREATE ON SCHEMA public FROM public")
	security := sqltest.ReadFile(t, "../../docs/security.md")
	var documented []string
	for _, row := range regexp.MustCompile("(?m)^\\| `(rate_limit_[a-z_]+)` \\| (yes|no) \\| "+
		"(yes|no) \\|").FindAllStringSubmatch(security, -1) {
		documented = append(documented, row[1]+" "+row[2]+" "+row[3]+" no")
	}
	slices.Sort(documented)
	may := func(kind string) string {
		return "CASE WHEN has_function_privilege('" + grantRole(t, s, kind) +
			"', oid, 'EXECUTE') THEN 'yes' ELSE 'no' END"
	}
	s.Expect("SELECT proname, "+may("proxy")+", "+may("administrator")+", "+may("reader")+
		" FROM pg_proc WHERE prosecdef AND pronamespace = 'public'::regnamespace "+
		`ORDER BY proname COLLATE "C"`, strings.Join(documented, "\n"))
	golden.Replay(t, "testdata/roles/bounds.txt", s.Replay)
}

// Views have the rights of the role that reads them. No function can be led to tables of its caller in place
// of ours: it sets its search_path, or names the schema of each table. A role without a grant may call only
// functions that compute, or that read with the rights of this role.
func TestViewsAndFunctionsGiveNoRights(t *testing.T) {
	s := sqltest.New(t)
	s.Expect(`SELECT c.relname FROM pg_class c WHERE c.relkind = 'v' AND c.relname LIKE 'rate\_limit\_%'
		AND NOT coalesce('security_invoker=true' = ANY (c.reloptions), false)`, "")
	const functions = `SELECT string_agg(p.proname, ' ' ORDER BY p.proname) FROM pg_proc p
		WHERE p.proname LIKE 'rate\_limit\_%' AND p.prosqlbody IS NULL AND p.provolatile <> 'i' AND `
	s.Expect(functions+`coalesce(array_to_string(p.proconfig, ' ')
		NOT LIKE '%search_path=pg_catalog, public, pg_temp%', true)`,
		"rate_limit_counters rate_limit_override_of") // they name the schema themselves
	s.Expect(functions+`EXISTS (SELECT FROM aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) a
		WHERE a.grantee = 0)`, "rate_limit_behind rate_limit_counted_prefix rate_limit_counters "+
		"rate_limit_exposed rate_limit_has_applied rate_limit_key_name rate_limit_override_of "+
		"rate_limit_read_report rate_limit_reported_at rate_limit_unknown_zones rate_limit_unlimited")
}

// A function with the rights of its owner and a trigger mean the same in every session, whatever the session
// sets.
func TestSessionsDoNotChangeWhatOwnersFunctionsMean(t *testing.T) {
	s := sqltest.New(t)
	s.Expect(`SELECT string_agg(p.proname, ' ') FROM pg_proc p WHERE p.proname LIKE 'rate\_limit\_%'
		AND (p.prosecdef OR p.prorettype = 'trigger'::regtype) AND NOT coalesce(
			ARRAY(SELECT split_part(c, '=', 1) FROM unnest(p.proconfig) c) @>
			'{search_path,TimeZone,DateStyle,IntervalStyle,bytea_output,extra_float_digits,array_nulls,
				standard_conforming_strings,quote_all_identifiers,lc_numeric,lc_time,lc_monetary}', false)`,
		"-")
}
