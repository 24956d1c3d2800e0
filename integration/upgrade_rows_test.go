package integration

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/sqltest"
)

// rowsOfVersions fills tables of a numbered version. laterRows has those of tables that the first one lacks.
const rowsOfVersions = `
INSERT INTO rate_limit_tiers (tier, rank) VALUES ('free', 1);
INSERT INTO rate_limit_users (user_id, tier) VALUES ('org', 'free');
INSERT INTO rate_limit_users (user_id, tier, parent) VALUES ('ann', 'free', 'org');
INSERT INTO rate_limit_api_keys (digest, user_id, name) VALUES (sha256('ann'), 'ann', 'first');
SELECT rate_limit_rule('plan', count_by => '{user}', per_day => 5);
INSERT INTO rate_limit_overrides (rule, limit_name, user_id, events) VALUES ('plan', 'per_day', 'ann', 7);
INSERT INTO rate_limit_bans (network, reason) VALUES ('192.0.2.0/24', 'noise');
INSERT INTO rate_limit_prices (model, input, output) VALUES ('m', 1, 2);
INSERT INTO rate_limit_secrets VALUES ('x', 'y');
INSERT INTO rate_limit_grants VALUES ('nobody', 'reader');
INSERT INTO rate_limit_processes VALUES (1, now());
INSERT INTO rate_limit_durable (prefix, key, count, window_start, held, expires_at)
	VALUES ('rule/plan/per_day', 'ann', 3, now(), '{{1,5}}', now() + interval '1 d');
INSERT INTO rate_limit_ephemeral (prefix, key, count, window_start, expires_at)
	VALUES ('z', 'ann', 3, now(), now() + interval '1 d');
INSERT INTO rate_limit_ledger (day, id, time, user_id, input, charges)
	VALUES ((now() AT TIME ZONE 'UTC')::date, gen_random_uuid(), now(), 'ann', 7, '[]');
INSERT INTO rate_limit_ledger_days (day) SELECT (now() AT TIME ZONE 'UTC')::date ON CONFLICT DO NOTHING;
INSERT INTO rate_limit_totals (day, n, user_id, ancestors, own, settled, kind, requests)
	SELECT d, 1, 'ann', '{org}', true, d, 'charge', 1 FROM (SELECT (now() AT TIME ZONE 'UTC')::date) t(d);
INSERT INTO rate_limit_ledger_retention (keep) SELECT '400 days' WHERE NOT EXISTS (
	SELECT FROM rate_limit_ledger_retention);
INSERT INTO rate_limit_notices (rule, limit_name, key, period, percent, used, quota)
	VALUES ('plan', 'per_day', 'ann', now(), 80, 4, 5);
INSERT INTO rate_limit_nodes (node) VALUES ('n');
INSERT INTO rate_limit_writers (writer, node, batch) VALUES ('w', 'n', 1);
SELECT rate_limit_upkeep();
INSERT INTO rate_limit_audit (time, cost, duration_us, outcome, prefix, node)
	VALUES (now(), 1, 1, 'limited', 'z', 'n');
INSERT INTO rate_limit_metrics (granularity, time, requests, last_request)
	SELECT g, date_trunc('day', now(), 'UTC'), 1, now() FROM unnest('{minute,hour,day}'::text[]) g;`

var laterRows = map[string]string{
	"rate_limit_lost":      "INSERT INTO rate_limit_lost (processes, process, units) VALUES ('p', 1, '{}')",
	"rate_limit_forgotten": `INSERT INTO rate_limit_forgotten (digest) VALUES ('\x00')`,
}

// rowsOfTables returns a query for all rows of a table, with the columns that it has now.
const rowsOfTables = `SELECT c.relname,
	format('SELECT coalesce(string_agg(concat_ws(''|'', %s), E''\n''), '''') FROM %s',
		string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum), c.oid::regclass)
	FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
	WHERE c.relname LIKE 'rate\_limit\_%' AND c.relkind IN ('r', 'p') AND NOT c.relispartition GROUP BY c.oid`

// ofPartition matches a line of the catalog about a partition of a day.
var ofPartition = regexp.MustCompile(`(?m)^.*_20[0-9]{6}.*\n?`)

// catalogOf returns the catalog of a database, without the partitions of days.
func catalogOf(s *sqltest.DB) string {
	s.Exec("SELECT rate_limit_upkeep()")
	return ofPartition.ReplaceAllString(s.Query(sqltest.CatalogSQL), "")
}

// No commit has tables of a higher revision than this one, which this migrate would take for those of a newer
// program.
func TestRevisionsOnlyGrow(t *testing.T) {
	log := run(t, "..", "git", "log", "-p", "--format=", "--", "internal/schema/digests.txt")
	digests, err := os.ReadFile("../internal/schema/digests.txt")
	if err != nil {
		t.Fatal(err)
	}
	revisions := regexp.MustCompile(`(?m)^\+(revision ([0-9]+) [0-9a-f]{64})$`).FindAllStringSubmatch(log, -1)
	if len(revisions) < 2 {
		t.Fatal("the history has no revisions: clone it in full")
	}
	for _, revision := range revisions {
		n, err := strconv.Atoi(revision[2])
		if err != nil || n >= schema.ThisRevision && !strings.Contains(string(digests), revision[1]) {
			t.Errorf("a commit has the %s, this program the revision %d", revision[1], schema.ThisRevision)
		}
	}
}

// On tables of each numbered version, today's program decides requests of each kind. With rows in every
// table, they become those of a new database, by migrate and by psql, and keep all rows.
func TestTablesOfEachVersionAreUpgraded(t *testing.T) {
	today, fresh := pgRatelimit(t), sqltest.Open(t, schema.File)
	want := catalogOf(fresh)
	file := filepath.Join(t.TempDir(), "schema.sql")
	if err := os.WriteFile(file, []byte(schema.File), 0o600); err != nil {
		t.Fatal(err)
	}
	commits := run(t, "..", "git", "log", "--format=%h", "--diff-filter=A", "--", "internal/schema/0*.sql")
	if !strings.Contains(commits, "\n") {
		t.Fatal("the history has no commits with numbered files: clone it in full")
	}
	added := strings.Fields(commits) // the newest first
	for _, commit := range added[:len(added)-1] {
		sql := run(t, treeOf(t, commit+"^"), "go", "run", "./internal/release", "-schema")
		t.Run("decisions before "+commit, func(t *testing.T) { checkKinds(t, sql, today) })
		for way, upgrade := range map[string]func(dsn string){
			"migrate": func(dsn string) { run(t, ".", today, "migrate", "--dsn", dsn) },
			"psql": func(dsn string) {
				run(t, ".", cluster.Tool(t, "psql"), "-v", "ON_ERROR_STOP=1", "-qf", file, dsn)
			},
		} {
			t.Run("before "+commit+", "+way, func(t *testing.T) {
				s := sqltest.Open(t, sql, rowsOfVersions)
				rows := fillRows(t, s)
				upgrade(s.DSN)
				for query, before := range rows {
					check.Equal(t, query, s.Query(query), before)
				}
				if got := catalogOf(s); got != want {
					t.Errorf("an upgrade and a new database differ in\n%s", sqltest.DifferingLines(got, want))
				}
			})
		}
	}
}

// fillRows fills the tables that the first version lacks, and returns the rows of all tables by query.
func fillRows(t *testing.T, s *sqltest.DB) map[string]string {
	t.Helper()
	rows := map[string]string{}
	for line := range strings.SplitSeq(s.Query(rowsOfTables), "\n") {
		table, query, _ := strings.Cut(line, " ")
		if later := laterRows[table]; later != "" {
			s.Exec(later)
		}
		if rows[query] = s.Query(query); rows[query] == "" {
			t.Errorf("%s has no rows: add some to rowsOfVersions or laterRows", table)
		}
	}
	return rows
}
