package integration

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// guideSQL returns the SQL statements of the migration guide, by its code blocks.
func guideSQL(t *testing.T) []string {
	t.Helper()
	text := readFile(t, "../docs/migrating-from-npm.md")
	var blocks []string
	inside := false
	for line := range strings.Lines(text) {
		switch fence := strings.TrimSpace(line); {
		case fence == "```sql":
			inside = true
			blocks = append(blocks, "")
		case fence == "```":
			inside = false
		case inside:
			blocks[len(blocks)-1] += line
		}
	}
	return blocks
}

// A Node program and this module count in the same rows. The Node program runs the documented statements of
// the npm library with the library's driver, the package pg. The SQL of docs/migrating-from-npm.md leads from
// the library to this module and back, and each program counts on from the counts of the other. The proxies
// have an account that does not own the tables.
func TestNpmGuideLeadsThereAndBack(t *testing.T) {
	t.Parallel()
	look, reorder, grant, sums := stepsOfGuide(t)
	text := readFile(t, "../deploy/back-to-npm.sql")
	upgrade, back := "SET lock_timeout = '2s'; "+schema.File+"; RESET lock_timeout", text

	dsn := cluster.Open(t)
	node := startNode(t, dsn)
	node.ask("/tables", nil)
	conn := cluster.Connect(t, dsn)
	run := func(sql string) []string { return linesOf(t, conn, sql) }
	account, proxyDSN := proxyAccount(t, run, dsn)
	takes := func(what string, take taker, cost int64, want bool) {
		t.Helper()
		for _, l := range limitsOfGuide {
			check.Equal(t, fmt.Sprintf("%s: %s: whether a hit of cost %d passes", l.Algorithm, what, cost),
				take(l, cost), want)
		}
	}
	takes("Node alone", node.take, 1, true)
	wantContains(t, strings.Join(run(look), "\n"), "ephemeral|api|1|f", "durable|api|1|f")

	run(upgrade)
	run(reorder)
	run(strings.Replace(grant, "('proxy'", "('"+account+"'", 1))
	store := openStore(t, proxyDSN)
	takes("the store on top of 1", takerOf(t, store), 10, false)
	takes("the store on top of 1", takerOf(t, store), 4, true)
	takes("Node on top of 5", node.take, 4, true)
	takes("the store on top of 9", takerOf(t, store), 2, false)
	rows := strings.Join(run(sums), "\n")
	if want := `^api\|user:1\|9\|0\|.*\|t\|f$`; !regexp.MustCompile(want).MatchString(rows) {
		t.Errorf("the check returns\n%s\nwant one row that matches %s", rows, want)
	}
	store.Close()

	run(back)
	checkColumns(t, dsn, "going back", 8)
	node.ask("/tables", nil)
	takes("Node on top of 9", node.take, 1, true)
	takes("Node on top of 10", node.take, 1, false)
	takes("a store that owns the tables", takerOf(t, openStore(t, dsn)), 1, false)
	checkColumns(t, dsn, "a second upgrade", 14)
}

// taker takes a hit of the key user:1, and reports whether it passes.
type taker func(l *ratelimit.Limit, cost int64) bool

// limitsOfGuide are a limit in each table.
var limitsOfGuide = []*ratelimit.Limit{
	{Prefix: "api", Algorithm: ratelimit.SlidingWindow, Events: 10, Window: time.Hour},
	{Prefix: "api", Algorithm: ratelimit.FixedWindow, Events: 10, Window: time.Hour, Durable: true},
}

// takerOf returns the taker of a store.
func takerOf(t *testing.T, store ratelimit.Store) taker {
	return func(l *ratelimit.Limit, cost int64) bool {
		decisions := make([]ratelimit.Decision, 1)
		check.OK(t, store.Take(t.Context(), time.Minute,
			[]ratelimit.Hit{{Limit: l, Key: "user:1", Cost: cost}}, decisions))
		return decisions[0].Allowed
	}
}

// checkColumns fails unless both tables have a number of columns.
func checkColumns(t *testing.T, dsn, after string, want int64) {
	t.Helper()
	for _, table := range []string{"rate_limit_ephemeral", "rate_limit_durable"} {
		check.Equal(t, "the columns of "+table+" after "+after, cluster.Query[int64](t, dsn, `SELECT count(*)
			FROM pg_attribute WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped`, table),
			want)
	}
}

// stepsOfGuide returns the SQL of the guide: a query of the tables, keys in byte order, rights, and a
// check.
func stepsOfGuide(t *testing.T) (look, reorder, grant, check string) {
	t.Helper()
	blocks := guideSQL(t)
	marks := []string{"UNION ALL", `COLLATE "C"`, "rate_limit_grant", "ord IS NOT NULL"}
	if len(blocks) != len(marks) {
		t.Fatalf("the guide has %d blocks of SQL, want %d", len(blocks), len(marks))
	}
	for i, mark := range marks {
		if !strings.Contains(blocks[i], mark) {
			t.Fatalf("block %d has no %s:\n%s", i, mark, blocks[i])
		}
	}
	return blocks[0], blocks[1], blocks[2], blocks[3]
}

// linesOf runs SQL, and returns its rows.
func linesOf(t *testing.T, conn *pgx.Conn, sql string) (lines []string) {
	t.Helper()
	results, err := conn.PgConn().Exec(context.Background(), sql).ReadAll()
	if err != nil {
		t.Fatalf("%v:\n%s", err, sql)
	}
	for _, result := range results {
		for _, row := range result.Rows {
			var columns []string
			for _, column := range row {
				columns = append(columns, string(column))
			}
			lines = append(lines, strings.Join(columns, "|"))
		}
	}
	return lines
}

// proxyAccount creates an account for the proxies, and returns its name and its DSN.
func proxyAccount(t *testing.T, run func(sql string) []string, dsn string) (account, proxyDSN string) {
	t.Helper()
	password := rand.Text()
	account = "proxy_" + strings.ToLower(rand.Text())
	run("CREATE ROLE " + account + " LOGIN PASSWORD '" + password + "'")
	t.Cleanup(func() {
		run("DROP OWNED BY " + account + "; DROP ROLE " + account)
	})
	proxy, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	proxy.User = url.UserPassword(account, password)
	return account, proxy.String()
}
