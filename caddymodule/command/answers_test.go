package command_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// documentedQuery matches a line of docs/policy.md under "Answers in SQL": a command, and the view or
// function that returns the same rows.
var documentedQuery = regexp.MustCompile("(?m)^- `([^`]+)`: `([^`]+)`")

// answersRows are the rows that the commands need:
//   - `… list`: tiers, rules, users, API keys; `bans`: bans
//   - `nodes`: rate_limit_nodes
//   - `top`, `get`: counters (rate_limit_ephemeral)
//   - `audit`, `why`, `top --since`: the audit log
//   - `usage`: metrics
//   - `prices list`, `invoice`, `notices`: prices, the ledger, notices
const answersRows = `
	INSERT INTO rate_limit_tiers (tier, rank, comment) VALUES ('free', 1, 'x'), ('pro', 2, NULL);
	SELECT rate_limit_rule('free', tiers => '{free}', per_hour => 100);
	SELECT rate_limit_price('gpt-4o*', 2.5, 10, valid => '[2026-01-01Z,)');
	INSERT INTO rate_limit_ledger (day, id, time, user_id, model, input, output, money, charges)
		VALUES ((now() AT TIME ZONE 'UTC')::date, gen_random_uuid(), now(), 'ann', 'gpt-4o', 21, 14, 193,
		'[{"key": "ann"}]');
	INSERT INTO rate_limit_notices (rule, limit_name, key, period, percent, used, quota)
		VALUES ('budget', 'month', 'ann', now(), 80, 40.5, 50);
	SELECT rate_limit_rule('shut', action => 'block', networks => '{192.0.2.0/24}', priority => 7);
	INSERT INTO rate_limit_users (user_id, tier) VALUES ('ann', 'free'), ('bob', 'pro');
	INSERT INTO rate_limit_api_keys (digest, user_id, name, revoked_at) VALUES (sha256('a'), 'ann', 'app',
	NULL), (sha256('b'), 'bob', NULL, now());
	INSERT INTO rate_limit_bans (user_id, reason, until) VALUES ('bob', 'abuse', now() + interval '1 h'),
	('ann', NULL, 'infinity');
	INSERT INTO rate_limit_nodes (node, epoch, report) VALUES ('a', 1,
	'{"region": "fra", "applied": "1:1:", "problems": ["rule x"]}'), ('b', 2, '{}');
	INSERT INTO rate_limit_ephemeral (prefix, key, count, window_start, expires_at) VALUES
		('rule/free/per_hour', 'ann', 85, now(), now() + interval '2 h'), ('rule/free/per_hour', 'bob', 7,
		now(), now() + interval '2 h'), ('web', 'x', 3, now(), now() + interval '2 h');
	SELECT rate_limit_make_partition((now() AT TIME ZONE 'UTC')::date - d) FROM generate_series(0, 1)
	AS d;
	INSERT INTO rate_limit_audit (time, cost, duration_us, retry_after_ms, outcome, prefix, limit_name,
	key, user_id, address, host, path, node, count, weight, also)
		SELECT now() - n * interval '1 s', 1, 1500, n * 1000,
			CASE n % 3 WHEN 0 THEN 'limited' ELSE 'admitted' END, 'rule/free', 'per_hour', 'ann', 'ann',
			'192.0.2.7', 'x', '/' || n % 2, 'a', n, 2, '{rule/free,ann}'
		FROM generate_series(1, 6) AS n;
	INSERT INTO rate_limit_metrics (granularity, time, user_id, key_id, prefix, requests, limited,
		settled, last_request) VALUES
		('day', '2026-11-02Z', 'ann', 0, 'web', 5, 1, 4, '2026-11-02 10:00Z'),
		('day', '2026-11-02Z', 'ann', 1, 'web', 3, 0, 3, '2026-11-02 11:00Z'),
		('day', '2026-11-30Z', 'ann', 1, 'web', 2, 0, 2, '2026-11-30 11:00Z')`

// The view or function that docs/policy.md names for a command returns the rows of the command, in the
// columns that they share.
func TestCommandsAndSQLReturnTheSameRows(t *testing.T) {
	page, err := os.ReadFile("../../docs/policy.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n### Answers in SQL\n")
	section, _, _ = strings.Cut(section, "\n#")
	queries := documentedQuery.FindAllStringSubmatch(section, -1)
	if len(queries) < 10 {
		t.Fatalf("docs/policy.md has %d answers in SQL, want 10 or more", len(queries))
	}
	s := newShell(t, schema.File)
	s.sql(answersRows)
	for _, q := range queries {
		fromCommand := decodeRows(t, s.mustRun(append(strings.Fields(q[1]), "--json")...))
		fromSQL := decodeRows(t, cluster.Query[string](t, s.dsn,
			"SELECT coalesce(json_agg(q), '[]')::text FROM (SELECT * FROM "+q[2]+") AS q"))
		shared := fromSQL[0]
		maps.DeleteFunc(shared, func(name string, value any) bool {
			shown, ok := fromCommand[0][name]
			return !ok || shown == nil && value == false
		})
		if len(shared) < 3 {
			t.Errorf("%s and SELECT * FROM %s share the columns %v, want 3 or more", q[1], q[2], shared)
		}
		if got, want := rowsOf(fromCommand, shared), rowsOf(fromSQL, shared); got != want {
			t.Errorf("%s lists\n%s\nwant, from %s,\n%s", q[1], got, q[2], want)
		}
	}
}

// decodeRows decodes a JSON list of rows, and fails the test if the list is empty.
func decodeRows(t *testing.T, text string) (rows []map[string]any) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &rows); err != nil || len(rows) == 0 {
		t.Fatalf("the list is %q, error %v, want rows", text, err)
	}
	return rows
}

// rowsOf formats, of each row, the values of the columns that are keys of columns, and sorts the rows.
func rowsOf(rows []map[string]any, columns map[string]any) string {
	var formatted []string
	for _, row := range rows {
		values := map[string]any{}
		for name := range columns {
			values[name] = row[name]
		}
		formatted = append(formatted, fmt.Sprint(values))
	}
	slices.Sort(formatted)
	return strings.Join(formatted, "\n")
}
