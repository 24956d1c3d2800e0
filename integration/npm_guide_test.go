package integration

import (
	"context"
	"crypto/rand"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
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

// The SQL of docs/migrating-from-npm.md leads from the npm library to this module and back, and each program
// counts on from the counts of the other. The proxies have an account that does not own the tables.
func TestNpmGuideLeadsThereAndBack(t *testing.T) {
	t.Parallel()
	look, reorder, grant, check := stepsOfGuide(t)
	text := readFile(t, "../deploy/back-to-npm.sql")
	upgrade, back := "SET lock_timeout = '2s'; "+schema.File+"; RESET lock_timeout", text

	dsn := cluster.Open(t)
	node := startNode(t, dsn)
	node.tables(t)
	conn := cluster.Connect(t, dsn)
	run := func(sql string) []string { return linesOf(t, conn, sql) }
	account, proxyDSN := proxyAccount(t, run, dsn)
	limits := limitsOfGuide()
	takes := func(program string, cost int64, want bool, takerOf func(*shared) taker) {
		t.Helper()
		limits.take(t, program, cost, want, takerOf)
	}
	byNode := func(s *shared) taker { return s.byNode(node) }

	takes("Node alone", 1, true, byNode)
	wantContains(t, strings.Join(run(look), "\n"), "ephemeral|api|1|f", "durable|api|1|f")

	run(upgrade)
	run(reorder)
	run(strings.Replace(grant, "('proxy'", "('"+account+"'", 1))
	store := openStore(t, proxyDSN)
	byStore := func(s *shared) taker { return s.byStore(store) }
	takes("the store on top of 1", 10, false, byStore)
	takes("the store on top of 1", 4, true, byStore)
	takes("Node on top of 5", 4, true, byNode)
	takes("the store on top of 9", 2, false, byStore)
	rows := strings.Join(run(check), "\n")
	if want := `^api\|user:1\|9\|0\|.*\|t\|f$`; !regexp.MustCompile(want).MatchString(rows) {
		t.Errorf("the check returns\n%s\nwant one row that matches %s", rows, want)
	}
	store.Close()

	run(back)
	checkColumns(t, dsn, "going back", 8)
	node.tables(t)
	takes("Node on top of 9", 1, true, byNode)
	takes("Node on top of 10", 1, false, byNode)
	again := openStore(t, dsn)
	takes("a store that owns the tables", 1, false, func(s *shared) taker { return s.byStore(again) })
	checkColumns(t, dsn, "a second upgrade", 14)
}

// checkColumns fails unless both tables have a number of columns.
func checkColumns(t *testing.T, dsn, after string, want int64) {
	t.Helper()
	for _, table := range tables {
		if n := cluster.Query[int64](t, dsn, `SELECT count(*) FROM pg_attribute
			WHERE attrelid = to_regclass($1) AND attnum > 0 AND NOT attisdropped`, table.name); n != want {
			t.Errorf("%s has %d columns after %s, want %d", table.name, n, after, want)
		}
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

// limits are limits that the Node program and this module share.
type limits []*shared

// limitsOfGuide returns a limit in each table.
func limitsOfGuide() limits {
	return limits{
		{limit: &ratelimit.Limit{Prefix: "api", Algorithm: ratelimit.SlidingWindow, Events: 10,
			Window: time.Hour}, key: "user:1"},
		{limit: &ratelimit.Limit{Prefix: "api", Algorithm: ratelimit.FixedWindow, Events: 10,
			Window: time.Hour, Durable: true}, key: "user:1"},
	}
}

// take takes from each limit, and fails the test unless it passes or is refused as wanted.
func (limits limits) take(t *testing.T, program string, cost int64, want bool,
	takerOf func(*shared) taker) {
	t.Helper()
	for _, s := range limits {
		if passes, err := takerOf(s)(cost); err != nil || passes != want {
			t.Errorf("%s: %s: a hit of cost %d: %v, %v; want %v", s.limit.Algorithm, program, cost,
				passes, err, want)
		}
	}
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
