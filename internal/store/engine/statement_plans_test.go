package engine_test

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// statementCapture is a DB that keeps one statement per SQL text.
type statementCapture struct {
	pgdb.DB
	mu   sync.Mutex
	seen map[string]pgdb.Statement
	// statements that also run in transactions without planner settings
	withoutPlannerSettings map[string]bool
}

func (d *statementCapture) Run(ctx context.Context, timeout time.Duration,
	statements []*pgdb.Statement) error {
	d.mu.Lock()
	plannerSettings := false // the transaction has planner settings
	for i, s := range statements {
		plannerSettings = i > 0 && statements[i-1].Joined &&
			(plannerSettings || strings.Contains(statements[i-1].SQL, "'enable_sort', 'off', true"))
		d.withoutPlannerSettings[s.SQL] = d.withoutPlannerSettings[s.SQL] || !plannerSettings
		if strings.Contains(s.SQL, "rate_limit_") && !strings.Contains(s.SQL, "to_regclass") {
			d.seen[s.SQL] = pgdb.Statement{SQL: s.SQL, Args: append([]any(nil), s.Args...),
				Unnamed: s.Unnamed}
		}
	}
	d.mu.Unlock()
	return d.DB.Run(ctx, timeout, statements)
}

// parameter returns the SQL type of an argument, and a literal of this type. An array is repeated, so that
// the server plans the statement for a batch of many entries.
func parameter(arg any, repeat int) (sqlType, literal string) {
	switch values := arg.(type) {
	case []string:
		sqlType, arg = "text[]", slices.Repeat(values, repeat)
	case []int64:
		sqlType, arg = "bigint[]", slices.Repeat(values, repeat)
	case int64:
		return "bigint", fmt.Sprint(values)
	case nil:
		return "text", "NULL"
	default:
		return "text", fmt.Sprintf("'%s'", arg)
	}
	array, err := json.Marshal(arg)
	if err != nil {
		panic(err)
	}
	return sqlType, "'{" + strings.Trim(string(array), "[]") + "}'"
}

// isSortedTake reports whether a statement is a take with sorted keys.
func isSortedTake(sql string) bool {
	return strings.Contains(sql, "INSERT INTO") && strings.Contains(sql, "unnest(") &&
		!strings.Contains(sql, "ORDER BY")
}

// planNode matches the nodes of a plan, and captures their names.
var planNode = regexp.MustCompile(`(?m)^(?: *->  )?([A-Z][A-Za-z ]+?)(?: on .*)?  \(cost`)

// reorderingNode returns the name of a node in a plan that may change the order of its rows, or "". A nested
// loop counts as a node that keeps the order, because one of its sides has one row.
func reorderingNode(plan string) string {
	for _, match := range planNode.FindAllStringSubmatch(plan, -1) {
		switch match[1] {
		case "Insert", "CTE Scan", "Result", "Subquery Scan", "ProjectSet", "Nested Loop", "Limit":
		default:
			return match[1]
		}
	}
	return ""
}

// scanNode matches the scans of the counters in a plan, and captures their conditions.
var scanNode = regexp.MustCompile(`-> +([A-Z][A-Za-z ]+?)(?: using (\S+))? on (rate_limit_\w+).*` +
	`(?:\n +((?:Index|TID) Cond: .*))?`)

// unexpectedScan returns a scan in a plan that may read rows of other entries, or "". It allows scans of:
//   - rows by their place (TID),
//   - one key, by the primary key,
//   - expired rows, by the index for cleanups,
//   - the next prefix, by an index-only scan with a LIMIT,
//   - the first rows of a prefix, to count them, by the index for cleanups with a LIMIT.
func unexpectedScan(plan string) string {
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
		writes := strings.HasPrefix(node, "Insert") || strings.HasPrefix(node, "Delete")
		if !slices.Contains([]bool{node == "Tid Scan", byKey, expired, next, counted, writes}, true) {
			return scan[0]
		}
	}
	return ""
}

// No plan of a statement reads rows of other entries. A take with sorted keys keeps their order: its plan has
// only nodes that return rows in the order of their source, and joins only with one row. The server plans
// each statement on empty, young and large tables, with fresh and stale statistics. In mode auto, it plans
// each statement seven times on one connection, because from the sixth time on it considers a generic plan.
func TestPlansUseIndexesAndKeepOrder(t *testing.T) {
	t.Parallel()
	s := newTestDB(t)
	s.exec(engine.TableSQL)
	p := &planner{testDB: s, statementCapture: captureStatements(s), conn: cluster.Connect(s.t, s.dsn)}
	const minStatements = 70
	// each in both tables, alone and in a transaction
	sortedTakes := 2 * 2 * len(conformance.Definitions())
	got := 0
	for text := range p.seen {
		if isSortedTake(text) {
			got++
		}
	}
	if len(p.seen) < minStatements || got != sortedTakes {
		t.Fatalf("captured %d statements and %d sorted takes, want at least %d and %d", len(p.seen), got,
			minStatements, sortedTakes)
	}
	const large = 100_000
	const both = "rate_limit_ephemeral, rate_limit_durable"
	const stale = "UPDATE pg_class SET reltuples = 0, relpages = 1000 WHERE relname IN " +
		"('rate_limit_ephemeral', 'rate_limit_durable')"
	for _, step := range []struct {
		name, sql  string
		rows       int    // the number of rows to add after the SQL
		keepsPlans bool   // the connection keeps its plans
		modes      string // the values of plan_cache_mode
	}{
		{name: "empty tables", sql: "TRUNCATE " + both, modes: "auto force_generic_plan"},
		{name: "young tables", rows: 20, modes: "auto"},
		{name: "young tables, plans kept", keepsPlans: true, modes: "auto"},
		{name: "young tables, analyzed", sql: "ANALYZE", modes: "auto"},
		{name: "tables analyzed while they were empty", sql: "TRUNCATE " + both + "; ANALYZE", modes: "auto"},
		{name: "large tables, plans kept", rows: large, keepsPlans: true, modes: "auto"},
		{name: "large tables, not analyzed", modes: "auto force_generic_plan"},
		{name: "large tables, last analyzed without rows", sql: stale, modes: "auto force_generic_plan"},
		{name: "large tables, analyzed, plans kept", sql: "ANALYZE", keepsPlans: true, modes: "auto"},
		{name: "large tables, analyzed", modes: "auto force_generic_plan"},
	} {
		if step.sql != "" {
			s.exec(step.sql)
		}
		p.insertRows(step.rows)
		for mode := range strings.FieldsSeq(step.modes) {
			// With -short, no statement is planned in mode auto, which takes seven plans of each.
			if mode != "auto" || !testing.Short() {
				if !step.keepsPlans {
					p.conn = cluster.Connect(p.t, p.dsn)
				}
				p.checkPlans(t, step.name, mode)
			}
		}
	}
}

// captureStatements makes a store send each of its statements.
func captureStatements(s *testDB) *statementCapture {
	db := &statementCapture{DB: s.openDB(""), seen: map[string]pgdb.Statement{},
		withoutPlannerSettings: map[string]bool{}}
	store := s.openEngineOn(db,
		engine.Options{CleanupProbability: 1, DisableMigration: true, DisableRememberedRefusals: true})
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
				takeAll(s.t, store, hits...)
			}
			store.DecideBatch([]*batch.Call{newCall(false, h), newCall(false, two)})
			if err := store.Reset(context.Background(), testTimeout, []ratelimit.Hit{h}); err != nil {
				s.t.Fatal(err)
			}
		}
	}
	await.Within(s.t, testTimeout, "cleanups of both tables", func() bool {
		takeAll(s.t, store, hitOn("p", 1000, false))
		takeAll(s.t, store, hitOn("p", 1000, true))
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
	return &statementCapture{seen: maps.Clone(db.seen),
		withoutPlannerSettings: maps.Clone(db.withoutPlannerSettings)}
}

// planner plans captured statements.
type planner struct {
	*testDB
	*statementCapture
	conn *pgx.Conn // prepares statements once, and keeps their plans
}

// insertRows adds rows to both tables.
func (p *planner) insertRows(rows int) {
	for _, table := range []string{"rate_limit_ephemeral", "rate_limit_durable"} {
		p.exec(fmt.Sprintf(`INSERT INTO %s (prefix, key, count, window_start, expires_at)
			SELECT 'p' || n %% 10, n::text, 1, now(), now() + (n %% 100 - 50) * interval '1 minute'
			FROM generate_series(1, %d) n ON CONFLICT DO NOTHING`, table, rows))
	}
}

// checkPlans prepares each statement, and fails the test for unexpected plans. tables describes the state of
// the tables, for failures.
func (p *planner) checkPlans(t *testing.T, tables, mode string) {
	for _, statement := range p.seen {
		var literals, types []string
		for i, arg := range statement.Args {
			repeat := 300
			if i == 0 { // the settings
				repeat = 1
			}
			sqlType, literal := parameter(arg, repeat)
			literals, types = append(literals, literal), append(types, sqlType)
		}
		name := fmt.Sprintf("s%x", crc32.ChecksumIEEE([]byte(statement.SQL)))
		_, err := p.conn.Exec(t.Context(),
			"PREPARE "+name+" ("+strings.Join(types, ", ")+") AS "+statement.SQL)
		if err != nil && !strings.Contains(err.Error(), "already exists") {
			t.Fatal(err)
		}
		p.setPlanner(t, statement, mode)
		times := 7
		if mode != "auto" {
			times = 1 // the next plan would be the same
		}
		for range times {
			rows, err := p.conn.Query(t.Context(),
				"EXPLAIN EXECUTE "+name+"("+strings.Join(literals, ", ")+")")
			if err != nil {
				t.Fatal(err)
			}
			lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil || len(lines) == 0 {
				t.Fatal(err)
			}
			plan := strings.Join(lines, "\n") + "\n"
			if node := reorderingNode(plan); isSortedTake(statement.SQL) &&
				(node != "" || !strings.Contains(plan, "ProjectSet")) {
				t.Errorf("%s: got a %s, want only nodes that keep the order of keys:\n%.300s\n%s", tables,
					node, statement.SQL, plan)
				break
			}
			if scan := unexpectedScan(plan); scan != "" {
				t.Errorf("%s: got the scan %s, want only scans of the statement's entries:\n%.600s\n%s",
					tables, scan, statement.SQL, plan)
				break
			}
		}
	}
}

// setPlanner applies the planner settings of the transactions with a statement, and sets plan_cache_mode to
// mode unless the statement is unnamed.
func (p *planner) setPlanner(t *testing.T, statement pgdb.Statement, mode string) {
	if statement.Unnamed {
		mode = "force_custom_plan"
	}
	enabled := "off"
	if p.withoutPlannerSettings[statement.SQL] {
		enabled = "on"
	}
	if _, err := p.conn.Exec(t.Context(), "SET plan_cache_mode = "+mode+
		"; SET enable_seqscan = "+enabled+"; SET enable_sort = "+enabled); err != nil {
		t.Fatal(err)
	}
}
