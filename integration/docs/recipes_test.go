package docs

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

const policyPage = "docs/policy.md"

// runChapters are the chapters that TestRecipesPrintTextsOfPages runs, by page; without chapters, all of the
// page. Before each other section, the test runs the section firstSection of policyPage.
var runChapters = map[string][]string{
	policyPage:          {"Recipes", "Reference"},
	"docs/runbook.md":   nil,
	"docs/operating.md": {"Maintenance"},
}

// isOfRecipe reports whether TestRecipesPrintTextsOfPages runs a block.
func isOfRecipe(b block) bool {
	chapters, ok := runChapters[b.document]
	return ok && (chapters == nil || slices.Contains(chapters, b.chapter))
}

// isOfGuide reports whether a test of a whole guide or recipe runs a block, with what stands before it.
func isOfGuide(b block) bool { return b.document == llmPage || isOfRecipe(b) }

// recipe has the facts that the test of a section needs besides the page.
type recipe struct {
	owner   bool               // whether the owner of the tables runs it, not an administrator
	tool    string             // a program that some packages of Postgres lack, or ""
	prepare func(k *recipeEnv) // prepares what the page names; may be nil
	verify  func(k *recipeEnv) // checks what the page says without an example; may be nil
}

const firstSection = "Begin here"

// recipes are the sections that need more than the page.
var recipes = map[string]recipe{
	firstSection:              {owner: true},
	"Overage and its invoice": {owner: true, verify: usageOutlivesItsPeriod},
	"Logins":                  {owner: true, verify: loginsBan},
	"Forget a person":         {owner: true},
	"Backup":                  {owner: true, tool: "pg_dump", verify: goesOnAfterARestore},
	"Move to another server": {owner: true, tool: "pg_dump",
		prepare: namesAnotherDatabase, verify: goesOnWhereItMoved},
}

// Each command and each statement of the recipes in runChapters prints the text that the page shows below it,
// with the Caddy of the page. A recipe for the owner of the tables starts with an empty database, and another
// recipe with the roles of the page.
func TestRecipesPrintTextsOfPages(t *testing.T) {
	sections := map[string][]block{}
	for _, d := range documents(t) {
		for _, b := range d.blocks {
			if isOfRecipe(b) {
				sections[b.section] = append(sections[b.section], b)
			}
		}
	}
	for name := range recipes {
		if len(sections[name]) == 0 {
			t.Errorf("no page has recipes in a section %q", name)
		}
	}
	for name, blocks := range sections {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := recipes[name]
			if r.tool != "" {
				cluster.Tool(t, r.tool)
			}
			k := newRecipeEnv(t, sections[firstSection], r.owner)
			if r.prepare != nil {
				r.prepare(k)
			}
			if name != firstSection {
				for _, b := range blocks {
					k.runRecipe(b)
				}
			}
			if r.verify != nil {
				r.verify(k)
			}
		})
	}
}

// The SQL of deploy/uninstall.sql drops all tables and functions of pg-ratelimit and nothing else, even if
// it runs again. If a view depends on a table, the SQL drops nothing.
func TestUninstallLeavesNothing(t *testing.T) {
	t.Parallel()
	uninstall := readFile(t, root+"/deploy/uninstall.sql")
	dsn := cluster.Open(t, schema.File,
		"CREATE TABLE rate_limit_mine (x int); CREATE VIEW mine AS SELECT * FROM rate_limit_tiers")
	for _, name := range []string{"rate_limit_audit_20260101", "rate_limit_audit_20260101_2"} {
		cluster.Execute(t, dsn, "SELECT rate_limit_make_partition('2026-01-01'); ALTER TABLE "+
			"rate_limit_audit DETACH PARTITION "+name)
	}
	cluster.Execute(t, dsn, "SELECT rate_limit_upkeep()")
	const ours = `SELECT string_agg(name, ' ' ORDER BY name) FROM (SELECT relname AS name FROM pg_class
		UNION ALL SELECT proname FROM pg_proc) AS a WHERE name LIKE 'rate\_limit\_%'`
	created := cluster.Query[string](t, dsn, ours)
	_, err := cluster.Connect(t, dsn).Exec(t.Context(), uninstall)
	if !strings.Contains(fmt.Sprint(err), "depend") {
		t.Errorf("with a view on a table: error %v, want one about what depends on it", err)
	}
	check.Equal(t, "the names in the database after a failure", cluster.Query[string](t, dsn, ours), created)
	cluster.Execute(t, dsn, "DROP VIEW mine")
	for range 2 {
		cluster.Execute(t, dsn, uninstall)
		check.Equal(t, "the names in the database", cluster.Query[string](t, dsn, ours), "rate_limit_mine")
	}
}

// usageOutlivesItsPeriod checks that the invoice has the whole month after the next month has started, and
// after the counter was deleted.
func usageOutlivesItsPeriod(k *recipeEnv) {
	months := func() string {
		return k.text(`SELECT string_agg(used::text, ', ' ORDER BY month) FROM (
			SELECT date_trunc('month', time, 'UTC') AS month, sum(settled) AS used FROM rate_limit_metrics
			WHERE granularity = 'day' AND user_id = 'ann' AND prefix = 'rule/metered' GROUP BY 1) AS m`)
	}
	await.Until(k, "the history of this month", func() bool { return months() == "5" })
	// A month passes.
	k.sql("UPDATE rate_limit_metrics_day SET time = date_trunc('month', now(), 'UTC') - " +
		"interval '1 day'")
	k.sql("UPDATE rate_limit_durable SET window_start = window_start - interval '1 month', " +
		"expires_at = expires_at - interval '1 month'")
	check.Equal(k, "the status of a request in the next month",
		k.ask("/", "X-Api-Key", k.shell.must("echo $ANN")[0]).Status, http.StatusOK)
	await.Until(k, "the invoices after a month to be of 5, 1", func() bool { return months() == "5, 1" })
	// The cleanup of the proxies deletes what has expired.
	k.sql("DELETE FROM rate_limit_durable")
	check.Equal(k, "the invoices after a cleanup", months(), "5, 1")
}

// loginsBan checks that ten refusals ban an address once. They ban no exempt address, and no address with
// fewer or older refusals.
func loginsBan(k *recipeEnv) {
	k.execute(k.owner, readFile(k.T, root+"/deploy/ban-refused.sql"))
	const ban = "SELECT ban_refused('login', 10, '10 minutes', '1 hour')"
	post := func(address string) int {
		request := harness.Get("http://"+k.proxy+"/login", "X-Forwarded-For", address)
		request.Method = http.MethodPost
		return harness.Ask(k, request).Status
	}
	k.sql("SELECT rate_limit_rule('partner', action => 'exempt', networks => '{198.51.100.0/24}', paths " +
		"=> '{/status}')")
	refuse := func(rows string) {
		k.Helper()
		k.execute(k.owner, `
			SELECT rate_limit_make_partition(((now() - interval '11 minutes') AT TIME ZONE 'UTC')::date);
			INSERT INTO rate_limit_audit (time, cost, duration_us, outcome, prefix, limit_name, address, node,
				count)
			SELECT now() - ago::interval, 1, 1, 'limited', 'rule/login', 'per_minute', address::inet, 'n',
				refusals
			FROM (VALUES `+rows+`) AS v(address, refusals, ago)`)
	}
	checkBanned := func(after, want string) {
		k.Helper()
		check.Equal(k, "the addresses that ban_refused bans after "+after, k.text(ban), want)
	}
	for refusals := 0; refusals < 10; {
		if post("192.0.2.9") == http.StatusTooManyRequests {
			refusals++
		}
	}
	await.Until(k, "the refusals in the audit log", func() bool {
		return k.text(`SELECT sum(count) FROM rate_limit_audit WHERE outcome = 'limited'
			AND address = '192.0.2.9'`) == "10"
	})
	refuse(`('192.0.2.10', 9, '0'), ('198.51.100.7', 10, '0'), (NULL, 20, '0'), ('192.0.2.0/24', 20, '0'),
		('2001:db8::/48', 20, '0'), ('192.0.2.77', 20, '11 minutes')`)
	checkBanned("ten refusals", "1")
	checkBanned("a ban", "0")
	const bans = `SELECT string_agg(concat_ws(' ', network, reason, until > now() + interval '59 minutes'
		AND until <= now() + interval '1 hour'), ', ' ORDER BY network) FROM rate_limit_bans`
	check.Equal(k, "the bans", k.text(bans), "192.0.2.9/32 10 refusals by login t")
	await.Until(k, "the ban", func() bool { return post("192.0.2.9") == http.StatusForbidden })
	for _, address := range []string{"192.0.2.77", "192.0.2.11"} {
		check.Equal(k, "the status of a login from "+address, post(address), http.StatusOK)
	}
	k.sql("UPDATE rate_limit_bans SET until = now()")
	checkBanned("the end of the ban", "0")
	k.sql("DELETE FROM rate_limit_bans")
	checkBanned("the ban was lifted", "0")
	refuse("('192.0.2.9', 10, '0'), ('2001:db8::1', 5, '0'), ('2001:db8::2', 5, '0')")
	checkBanned("later refusals", "2")
	want := "192.0.2.9/32 10 refusals by login t, 2001:db8::/64 10 refusals by login t"
	check.Equal(k, "the bans", k.text(bans), want)
}

// goesOnAfterARestore checks that keys, limits and the history work with the restored tables. The first
// requests may have no decision.
func goesOnAfterARestore(k *recipeEnv) {
	ann := k.shell.must("echo $ANN")[0]
	await.Until(k, "the limit of ann", func() bool {
		return k.ask("/", "X-Api-Key", ann).Header.Get("X-RateLimit-Limit") == "1000"
	})
	await.Until(k, "the history", func() bool {
		return k.text(`SELECT EXISTS (SELECT FROM rate_limit_audit WHERE user_id = 'ann'
			AND outcome = 'admitted')
			AND EXISTS (SELECT FROM rate_limit_metrics_hour)
			AND EXISTS (SELECT FROM rate_limit_traffic)`) == "t"
	})
}

// joinLines returns lines as one text, for messages.
func joinLines(lines []string) string { return strings.Join(lines, "\n") }

// namesAnotherDatabase gives the shell the DSN of an empty database.
func namesAnotherDatabase(k *recipeEnv) {
	k.moved = cluster.Open(k)
	k.shell.must("export NEW_DATABASE_URL='" + k.moved + "'; echo exported")
}

// goesOnWhereItMoved checks that a Caddy with the new DSN accepts ann's key and counts on from ann's usage.
func goesOnWhereItMoved(k *recipeEnv) {
	ann := k.shell.must("echo $ANN")[0]
	for _, b := range blocksIn(k.T, "caddyfile") {
		if b.document == policyPage && b.section == firstSection {
			k.startCaddy(b.text, k.moved)
		}
	}
	await.Until(k, "the limit of ann", func() bool {
		response := k.ask("/", "X-Api-Key", ann)
		return response.Header.Get("X-RateLimit-Limit") == "1000" &&
			response.Header.Get("X-RateLimit-Remaining") == "998"
	})
	nodes := joinLines(k.shell.must(`caddy pg-ratelimit nodes --dsn "$NEW_DATABASE_URL"`))
	if !strings.Contains(nodes, " live ") {
		k.Errorf("nodes prints\n%s\nwant a live one", nodes)
	}
}
