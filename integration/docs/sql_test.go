package docs

import (
	"crypto/rand"
	_ "embed"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// npmGuide is a page with SQL that must run in its order. TestNpmGuideLeadsThereAndBack, in the folder above,
// runs this SQL.
const npmGuide = "docs/migrating-from-npm.md"

// grantee is an account of rate_limit_grant.
var grantee = regexp.MustCompile(`rate_limit_grant\('\w+'`)

// historyOfAClient is one row of each table of the history.
//
//go:embed testdata/history.sql
var historyOfAClient string

// On a database in which a client has used its limits, each query of the documentation finds a row of this
// client.
func TestQueriesOfPagesFindRows(t *testing.T) {
	if !hasTest(t, "integration", "TestNpmGuideLeadsThereAndBack") {
		t.Errorf("no test runs the SQL of %s", npmGuide)
	}
	isOfNpmGuide := func(b block) bool { return b.document == npmGuide }
	for _, b := range blocksIn(t, "sql", isOfNpmGuide, isOfGuide) {
		t.Run(b.String(), func(t *testing.T) {
			dsn := cluster.Open(t)
			h := middleware(t, map[string]any{
				"dsn": dsn, "prefix": "web", "limit": "100 1m", "timeout": "20s", "onError": "deny",
				"zones": []map[string]any{
					{"prefix": "api", "limit": "100 1h", "algorithm": "fixed_window", "durable": true},
					{"prefix": "per-key", "limit": "100 1h", "key": "{header.X-API-Key}", "durable": true},
				},
			})
			if response := ask(h, "X-API-Key", "the API key"); response.Code != http.StatusOK {
				t.Fatalf("the client's request: %d %s, want 200", response.Code, response.Body)
			}
			// The middleware creates the tables of the policy in the background, perhaps later.
			cluster.Execute(t, dsn, schema.File+historyOfAClient)
			// Accounts belong to the whole server, so other tests could have one with the page's name.
			account := "caddy_" + strings.ToLower(rand.Text())
			cluster.Execute(t, dsn, "CREATE ROLE "+account)
			t.Cleanup(func() { cluster.Execute(t, dsn, "DROP OWNED BY "+account+"; DROP ROLE "+account) })
			results, err := cluster.Connect(t, dsn).PgConn().Exec(t.Context(),
				grantee.ReplaceAllString(b.text, "rate_limit_grant('"+account+"'")).ReadAll()
			if err != nil {
				t.Fatal(err)
			}
			for _, result := range results {
				tag := result.CommandTag
				if (tag.Select() || tag.Update() || tag.Delete()) && tag.RowsAffected() != 1 {
					t.Errorf("%s finds %d rows of the client, want 1", tag, tag.RowsAffected())
				}
			}
		})
	}
}
