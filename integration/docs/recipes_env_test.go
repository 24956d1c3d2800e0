package docs

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// pageRoles are the roles that the page names. Roles belong to the whole server instead of one database, so
// each recipe uses roles with other names.
var pageRoles = []string{"proxy", "administrator"}

// recipeEnv is a database and a Caddy on which a recipe runs, as the page describes them.
type recipeEnv struct {
	*testing.T
	owner, reader *pgx.Conn // sessions of the owner of the tables, and of the role that runs the recipe
	rename        *regexp.Regexp
	renamed       map[string]string
	proxy         string // Caddy's address
	metrics       string // URL
	shell         *shell
	moved         string // the DSN of another database, for a recipe that names one
}

// newRecipeEnv creates a database, and runs firstBlocks, those of firstSection. If asOwner is true, Caddy and
// the recipe connect as the owner of the database, and Caddy creates the tables. Otherwise newRecipeEnv
// creates the tables and the roles of the page, and both connect with these roles.
func newRecipeEnv(t *testing.T, firstBlocks []block, asOwner bool) *recipeEnv {
	t.Helper()
	dsn := cluster.Open(t)
	k := &recipeEnv{T: t, renamed: map[string]string{},
		rename: regexp.MustCompile(`\b(` + strings.Join(pageRoles, "|") + `)\b`)}
	k.owner = cluster.Connect(t, dsn)
	suffix := "_" + strings.ToLower(rand.Text())
	for _, role := range pageRoles {
		k.renamed[role] = role + suffix
	}
	t.Cleanup(func() {
		for _, role := range pageRoles {
			k.execute(k.owner, fmt.Sprintf("DO $$ BEGIN IF to_regrole('%[1]s') IS NOT NULL THEN DROP "+
				"OWNED BY %[1]s; DROP ROLE %[1]s; END IF; END $$", k.renamed[role]))
		}
	})
	proxy, reader := dsn, dsn
	if !asOwner {
		k.execute(k.owner, schema.File)
		k.makeRoles()
		as := func(role string) string { return dsn + "&options=-c%20role%3D" + k.renamed[role] }
		proxy, reader = as("proxy"), as("administrator")
	}
	k.reader = cluster.Connect(t, reader)
	for _, b := range firstBlocks {
		if b.language == "caddyfile" {
			k.startCaddy(b.text, proxy)
		}
	}
	if k.proxy == "" {
		t.Fatal("the first section has no Caddyfile")
	}
	await.Until(k, "the tables", func() bool {
		return k.text("SELECT to_regproc('rate_limit_about') IS NOT NULL") == "t"
	})
	await.Until(k, "the proxy's first report of the policy", func() bool {
		return k.text("SELECT coalesce(bool_or(policy), false) FROM rate_limit_proxies") == "t"
	})
	k.shell = newShell(t, reader)
	for _, b := range firstBlocks {
		k.runRecipe(b)
	}
	return k
}

// makeRoles creates the roles of the pages.
func (k *recipeEnv) makeRoles() {
	k.Helper()
	for _, kind := range []string{"proxy", "administrator"} {
		k.execute(k.owner, fmt.Sprintf("CREATE ROLE %[1]s; SELECT rate_limit_grant('%[1]s', '%[2]s')",
			k.renamed[kind], kind))
	}
}

// startCaddy runs the Caddyfile of the page. Every request is decided, however slow the machine is.
func (k *recipeEnv) startCaddy(config, dsn string) {
	k.Helper()
	upstream := harness.Serve(k, func(w http.ResponseWriter,
		_ *http.Request) {
		fmt.Fprintln(w, "hello")
	})
	k.proxy = harness.FreeAddress(k)
	admin := harness.FreeAddress(k)
	k.metrics = "http://" + admin + "/metrics"
	config = harness.Replace(k, config,
		"{\n", "{\n\tauto_https off\n\tpersist_config off\n\tadmin "+admin+"\n",
		":8080 {", "http://"+k.proxy+" {\n\tbind 127.0.0.1",
		"pg_ratelimit {\n\t\tpolicy", "pg_ratelimit {\n\t\ttimeout 30s\n\t\ton_error deny\n\t\tpolicy",
		"127.0.0.1:9000", strings.TrimPrefix(upstream, "http://"))
	harness.RunCaddy(k, "", harness.Caddy(k, root), k.proxy, config, "DATABASE_URL="+dsn)
}

// withOwnRoles returns SQL of the page with the roles of this recipe.
func (k *recipeEnv) withOwnRoles(sql string) string {
	return k.rename.ReplaceAllStringFunc(sql, func(role string) string { return k.renamed[role] })
}

func (k *recipeEnv) execute(conn *pgx.Conn, sql string) {
	k.Helper()
	if _, err := conn.PgConn().Exec(context.Background(), sql).ReadAll(); err != nil {
		k.Errorf("%s: %v", sql, err)
	}
}

// sql runs SQL as the owner of the tables, and waits until the proxy applies it.
func (k *recipeEnv) sql(sql string) {
	k.Helper()
	k.execute(k.owner, sql)
	k.awaitPolicyApplied()
}

// text returns the only value of a query by the owner of the tables.
func (k *recipeEnv) text(query string) string {
	k.Helper()
	return k.value(k.owner, query)
}

func (k *recipeEnv) value(conn *pgx.Conn, query string) string {
	k.Helper()
	results, err := conn.PgConn().Exec(context.Background(), query).ReadAll()
	if err != nil || len(results) == 0 {
		k.Fatalf("%s: %v", query, err)
	}
	last := results[len(results)-1]
	if len(last.Rows) != 1 {
		k.Fatalf("%s returns %d rows, want 1", query, len(last.Rows))
	}
	return string(last.Rows[0][0])
}

// awaitPolicyApplied waits until the proxy has applied all changes of the policy.
func (k *recipeEnv) awaitPolicyApplied() {
	k.Helper()
	last := k.text("SELECT coalesce(max(seq), 0) FROM rate_limit_changes")
	version := regexp.MustCompile(`(?m)^caddy_pg_ratelimit_policy_version (\S+)$`)
	await.Until(k, "the proxy to apply the policy", func() bool {
		match := version.FindStringSubmatch(harness.Ask(k, harness.Get(k.metrics)).Body)
		var applied float64
		if match != nil {
			if _, err := fmt.Sscan(match[1], &applied); err != nil {
				k.Fatal(err)
			}
		}
		return match != nil && fmt.Sprint(int64(applied)) == last
	})
}

// ask sends a request to the proxy. headers are names and values in turn.
func (k *recipeEnv) ask(path string, headers ...string) harness.Response {
	k.Helper()
	return harness.Ask(k, harness.Get("http://"+k.proxy+path, headers...))
}

// runRecipe runs a block of the page.
func (k *recipeEnv) runRecipe(b block) {
	k.Helper()
	switch b.language {
	case "caddyfile":
	case "console":
		k.runConsole(b)
	case "sql":
		k.runSQL(b)
	default:
		k.Errorf("%s: no recipe has blocks of the language %q", b, b.language)
	}
}
