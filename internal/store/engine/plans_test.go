package engine_test

import (
	"context"
	"fmt"
	"hash/crc32"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// recorder keeps a statement of each text that runs.
type recorder struct {
	pgdb.DB
	mu   sync.Mutex
	seen map[string]pgdb.Statement
	free map[string]bool // texts that run without the settings of the planner before them
}

func (d *recorder) Run(ctx context.Context, statements []*pgdb.Statement) error {
	d.mu.Lock()
	off := false // for the transaction
	for i, s := range statements {
		off = i > 0 && statements[i-1].Joined &&
			(off || strings.Contains(statements[i-1].SQL, "'enable_sort', 'off', true"))
		d.free[s.SQL] = d.free[s.SQL] || !off
		if strings.Contains(s.SQL, "rate_limit_") && !strings.Contains(s.SQL, "to_regclass") {
			d.seen[s.SQL] = pgdb.Statement{SQL: s.SQL, Args: append([]any(nil), s.Args...),
				Unnamed: s.Unnamed}
		}
	}
	d.mu.Unlock()
	return d.DB.Run(ctx, statements)
}

// literal writes a parameter in SQL.
func literal(arg any) string {
	quote := func(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
	switch arg := arg.(type) {
	case []string:
		var all []string
		for _, s := range arg {
			all = append(all, quote(s))
		}
		return "ARRAY[" + strings.Join(all, ", ") + "]::text[]"
	case []int64:
		return strings.ReplaceAll(fmt.Sprintf("ARRAY%d::bigint[]", arg), " ", ", ")
	case string:
		return quote(arg)
	case nil:
		return "NULL"
	}
	return fmt.Sprint(arg)
}

// many repeats an array, so that a statement is planned for a batch of many entries.
func many(arg any) any {
	switch arg := arg.(type) {
	case []string:
		return slices.Repeat(arg, 300)
	case []int64:
		return slices.Repeat(arg, 300)
	}
	return arg
}

// typeOf is the type that a DB sends with a parameter.
func typeOf(arg any) string {
	switch arg.(type) {
	case []string:
		return "text[]"
	case []int64:
		return "bigint[]"
	case int64:
		return "bigint"
	}
	return "text"
}

// comesSorted reports whether a statement is a take with keys that the store has sorted.
func comesSorted(sql string) bool {
	return strings.Contains(sql, "INSERT INTO") && strings.Contains(sql, "unnest(") &&
		!strings.Contains(sql, "ORDER BY")
}

// planNode finds the names of the nodes of a plan.
var planNode = regexp.MustCompile(`(?m)^(?: *->  )?([A-Z][A-Za-z ]+?)(?: on .*)?  \(cost`)

// reorders returns a node of a plan that may change the order of its rows, or "".
// A nested loop keeps the order if one of its sides has one row.
func reorders(plan string) string {
	for _, found := range planNode.FindAllStringSubmatch(plan, -1) {
		switch found[1] {
		case "Insert", "CTE Scan", "Result", "Subquery Scan", "ProjectSet", "Nested Loop", "Limit":
		default:
			return found[1]
		}
	}
	return ""
}

// scanNode finds the scans of the counters in a plan, and their conditions.
var scanNode = regexp.MustCompile(`-> +([A-Z][A-Za-z ]+?)(?: using (\S+))? on (rate_limit_\w+).*` +
	`(?:\n +((?:Index|TID) Cond: .*))?`)

// readsTooMuch returns a scan of a plan that may read more rows than the statement is about: it
// is not one of rows by their place, of one key by the primary key, or of expired rows, of
// prefixes, and of so many rows of a prefix by an index in its order.
func readsTooMuch(plan string) string {
	for _, scan := range scanNode.FindAllStringSubmatch(plan, -1) {
		node, index, table, condition := scan[1], scan[2], scan[3], scan[4]
		byKey := index == table+"_pkey" &&
			(strings.Contains(condition, "(key = ") ||
				strings.Contains(condition, "(key >= ") && strings.Contains(condition, "(key <= "))
		expired := index == "idx_"+table+"_cleanup" && strings.Contains(condition, "(expires_at <= ")
		next := node == "Index Only Scan" && strings.Contains(plan, "Limit") &&
			strings.Contains(condition, "(prefix > ")
		counted := index == "idx_"+table+"_cleanup" && strings.Contains(plan, "Aggregate") &&
			strings.Contains(plan, "Limit") && strings.Contains(condition, "(prefix = ")
		if node != "Tid Scan" && !byKey && !expired && !next && !counted &&
			!strings.HasPrefix(node, "Insert") && !strings.HasPrefix(node, "Delete") {
			return scan[0]
		}
	}
	return ""
}

// TestPlansUseTheIndexes has each statement of a store planned on tables of several sizes, with several
// statistics, fresh and seven times on one connection, since the server considers one plan for all parameters
// from the sixth time on: no plan reads other rows than those it is about, and none sorts rows of a table. A
// take with sorted keys keeps their order: its plan has only nodes that return rows in the order of their
// source, and no join but with one row.
func TestPlansUseTheIndexes(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.exec(engine.TableSQL)
	p := &planner{site: s, recorder: recordAll(s), conn: cluster.Connect(s.t, s.dsn)}
	sorted := 0 // takes with sorted keys
	for text := range p.seen {
		if comesSorted(text) {
			sorted++
		}
	}
	if len(p.seen) < 70 || sorted != 2*2*6 { // by table, and by itself or in a transaction
		t.Fatalf("%d statements, %d with sorted keys", len(p.seen), sorted)
	}
	large := 1_000_000
	if testing.Short() {
		large = 100_000
	}
	const both = "rate_limit_ephemeral, rate_limit_durable"
	const stale = "UPDATE pg_class SET reltuples = 0, relpages = 1000 WHERE relname IN " +
		"('rate_limit_ephemeral', 'rate_limit_durable')"
	for _, step := range []struct {
		name, sql string
		rows      int  // that are added, after the SQL
		kept      bool // the connection keeps its plans
		modes     string
	}{
		{"empty tables", "TRUNCATE " + both, 0, false, "auto force_generic_plan"},
		{"young tables", "", 20, false, "auto"},
		{"young tables, plans kept", "", 0, true, "auto"},
		{"young tables, analyzed", "ANALYZE", 0, false, "auto"},
		{"tables analyzed while they were empty", "TRUNCATE " + both + "; ANALYZE", 0, false, "auto"},
		{"large tables, plans kept", "", large, true, "auto"},
		{"large tables, not analyzed", "", 0, false, "auto force_generic_plan"},
		{"large tables, last analyzed without rows", stale, 0, false, "auto force_generic_plan"},
		{"large tables, analyzed, plans kept", "ANALYZE", 0, true, "auto"},
		{"large tables, analyzed", "", 0, false, "auto force_generic_plan"},
	} {
		if step.sql != "" {
			s.exec(step.sql)
		}
		p.fill(step.rows)
		for mode := range strings.FieldsSeq(step.modes) {
			// make test-all plans these, most of them seven times
			if mode != "auto" || !testing.Short() {
				p.explain(t, step.name, mode, !step.kept)
			}
		}
	}
}

// recordAll has a store send each of its statements.
func recordAll(s *site) *recorder {
	db := &recorder{DB: s.db(""), seen: map[string]pgdb.Statement{}, free: map[string]bool{}}
	store := s.storeOn(db, engine.Options{CleanupProbability: 1, DisableMigration: true, NoRefusals: true})
	for _, durable := range []bool{false, true} {
		for _, l := range conformance.Limits("", 20) {
			l.Durable = durable
			h := ratelimit.Hit{Limit: l, Key: "k", Cost: 1}
			other, peek, refund := h, h, h
			other.Key, peek.Peek, refund.Cost = "other", true, -1
			two := other
			two.Cost = 2
			for _, hits := range [][]ratelimit.Hit{{h}, {peek}, {refund}, {h, other}, {h, two},
				{peek, other}} {
				passes(s.t, store, hits...)
			}
			store.DecideBatch([]*batch.Call{callFor(false, h), callFor(false, two)})
			if err := store.Reset(context.Background(), longTime, []ratelimit.Hit{h}); err != nil {
				s.t.Fatal(err)
			}
		}
	}
	await.Within(s.t, longTime, "cleanups of both tables", func() bool {
		passes(s.t, store, hitOn("p", 1000, false))
		passes(s.t, store, hitOn("p", 1000, true))
		db.mu.Lock()
		defer db.mu.Unlock()
		cleanups := 0
		for text := range db.seen {
			if strings.Contains(text, "SKIP LOCKED") {
				cleanups++
			}
		}
		return cleanups == 2
	})
	store.Close()
	db.mu.Lock() // a cleanup may still be ending
	defer db.mu.Unlock()
	return &recorder{seen: maps.Clone(db.seen), free: maps.Clone(db.free)}
}

// planner plans recorded statements.
type planner struct {
	*site
	*recorder
	conn *pgx.Conn // keeps its plans
}

// fill adds rows to both tables.
func (p *planner) fill(rows int) {
	for _, table := range []string{"rate_limit_ephemeral", "rate_limit_durable"} {
		p.exec(fmt.Sprintf(`INSERT INTO %s (prefix, key, count, window_start, expires_at)
			SELECT 'p' || n %% 10, n::text, 1, now(), now() + (n %% 100 - 50) * interval '1 minute'
			FROM generate_series(1, %d) n ON CONFLICT DO NOTHING`, table, rows))
	}
}

// explain fails for each statement with a wrong plan.
func (p *planner) explain(t *testing.T, when, mode string, fresh bool) {
	if fresh {
		p.conn = cluster.Connect(p.t, p.dsn)
	}
	for _, statement := range p.seen {
		mode := mode
		var args, types []string
		for i, arg := range statement.Args {
			if i > 0 { // the first are the settings
				arg = many(arg)
			}
			args = append(args, literal(arg))
			types = append(types, typeOf(arg))
		}
		key := fmt.Sprintf("s%x", crc32.ChecksumIEEE([]byte(statement.SQL)))
		if _, err := p.conn.Exec(context.Background(),
			"PREPARE "+key+" ("+strings.Join(types, ", ")+") AS "+statement.SQL); err != nil &&
			!strings.Contains(err.Error(), "already exists") {
			t.Fatal(err)
		}
		if statement.Unnamed {
			mode = "force_custom_plan"
		}
		// "off" if each transaction with the statement sets it
		free := map[bool]string{true: "on", false: "off"}[p.free[statement.SQL]]
		if _, err := p.conn.Exec(context.Background(), "SET plan_cache_mode = "+mode+
			"; SET enable_seqscan = "+free+"; SET enable_sort = "+free); err != nil {
			t.Fatal(err)
		}
		times := 7
		if mode != "auto" {
			times = 1 // the next plan would be the same
		}
		for range times {
			rows, err := p.conn.Query(context.Background(),
				"EXPLAIN EXECUTE "+key+"("+strings.Join(args, ", ")+")")
			if err != nil {
				t.Fatal(err)
			}
			lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil || len(lines) == 0 {
				t.Fatal(err)
			}
			plan := strings.Join(lines, "\n") + "\n"
			if node := reorders(plan); comesSorted(statement.SQL) &&
				(node != "" || !strings.Contains(plan, "ProjectSet")) {
				t.Errorf("%s: a %s may change the order of the keys:\n%.300s\n%s", when, node,
					statement.SQL, plan)
				break
			}
			if scan := readsTooMuch(plan); scan != "" {
				t.Errorf("%s: %s:\n%.600s\n%s", when, scan, statement.SQL, plan)
				break
			}
		}
	}
}
