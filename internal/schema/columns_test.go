package schema_test

import (
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/sqltest"
)

// docs/policy.md has the comment of each column of the policy that operators set.
func TestPolicyPageDescribesEachColumn(t *testing.T) {
	checkColumns(t, "../../docs/policy.md", "SELECT * FROM rate_limit_policy_columns")
}

// docs/operating.md has the comment of each column of the audit log, the metrics and the bans.
func TestOperatingPageDescribesTheHistory(t *testing.T) {
	checkColumns(t, "../../docs/operating.md", `SELECT
		array_position(names, attrelid::regclass::text) AS place, attrelid::regclass AS relation,
		attnum AS position, attname::text AS name,
		format_type(atttypid, atttypmod) AS type, pg_get_expr(d.adbin, d.adrelid) AS default_value,
		col_description(attrelid, attnum) AS description
		FROM (SELECT '{rate_limit_audit,rate_limit_metrics,rate_limit_bans}'::text[] AS names) AS n,
			pg_attribute a LEFT JOIN pg_attrdef d ON (d.adrelid, d.adnum) = (a.attrelid, a.attnum)
		WHERE attrelid::regclass::text = ANY (names) AND attnum > 0 AND NOT attisdropped`)
}

// The views of rules and of the audit log have the columns of their tables.
func TestViewsHaveTheColumnsOfTheirTables(t *testing.T) {
	s := sqltest.New(t)
	for _, c := range []struct{ table, view, others string }{
		{"rate_limit_rules", "rate_limit_rule_states", "created_at,created_by,updated_at"},
		{"rate_limit_audit", "rate_limit_audited", "retry_after_ms,duration_us"},
	} {
		s.Expect(`SELECT string_agg(attname, ',' ORDER BY attnum) FROM pg_attribute a
			WHERE attrelid = '`+c.table+`'::regclass AND attnum > 0 AND NOT attisdropped
			AND attname NOT IN (SELECT attname FROM pg_attribute WHERE attrelid = '`+c.view+`'::regclass)`,
			c.others)
	}
}

// checkColumns compares a part of a page with tables of columns, which a query returns as
// rate_limit_policy_columns does.
func checkColumns(t *testing.T, page, query string) {
	// A column without a comment makes the text NULL.
	golden.CheckPart(t, page, "go test ./internal/schema", "\n"+sqltest.New(t).Query(`SELECT
		string_agg(format(E'**%s**\n\n| column | type | default | meaning |\n'
			'|---|---|---|---|\n%s\n', relation, columns), E'\n' ORDER BY place) FROM (
		SELECT place, relation, CASE WHEN bool_and(description IS NOT NULL) THEN string_agg(
			concat('| ', c || name || c, ' | ', type, ' | ', c
				|| regexp_replace(default_value, '^''(.*)''::.*$', '\1') || c,
				' | ', replace(description, '|', '\|'), ' |'), E'\n' ORDER BY position) END AS columns
		FROM (`+query+`) AS q, chr(96) AS c GROUP BY place, relation) AS t`)+"\n\n")
}
