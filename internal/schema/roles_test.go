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
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/drivers"
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
	store, err := counts.Open(drivers.Patient(s.OpenDB(proxy)), engine.Options{
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
	facts := policy.Facts{DefaultTier: "anonymous", Path: "/", Method: "GET"}
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

// docs/generated/sql.md lists exactly the functions that run with the rights of their owner, and for each
// whether a proxy and an administrator may call it. A reader may call none of them: the last column. The
// transcript bounds shows that a role can destroy or create only what the documents say.
func TestWhatEachRoleMayCall(t *testing.T) {
	s := sqltest.New(t)
	s.Exec("REVOKE CREATE ON SCHEMA public FROM public")
	_, security, _ := strings.Cut(sqltest.ReadFile(t, "../../docs/generated/sql.md"),
		"\n## Functions with the rights of the owner\n")
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
