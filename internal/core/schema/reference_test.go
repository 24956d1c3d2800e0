package schema_test

import (
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
)

// docs/policy.md has the comment of each column of the policy that operators set.
func TestPolicyPageDescribesEachColumn(t *testing.T) {
	const (
		page = "../../../docs/policy.md"
		from = "<!-- `go test ./internal/core/schema -update` writes the lines from here -->\n"
		to   = "<!-- to here -->\n"
	)
	file := readFile(t, page)
	before, rest, found := strings.Cut(file, from)
	_, after, ends := strings.Cut(rest, to)
	// A column without a comment makes the text NULL.
	want := "\n" + newTestDB(t).queryText(`SELECT
		string_agg(format(E'**%s**\n\n| column | type | default | meaning |\n'
			'|---|---|---|---|\n%s\n', relation, columns), E'\n' ORDER BY place) FROM (
		SELECT place, relation, CASE WHEN bool_and(description IS NOT NULL) THEN string_agg(
			concat('| ', c || name || c, ' | ', type, ' | ', c
				|| regexp_replace(default_value, '^''(.*)''::.*$', '\1') || c,
				' | ', replace(description, '|', '\|'), ' |'), E'\n' ORDER BY position) END AS columns
		FROM rate_limit_policy_columns, chr(96) AS c GROUP BY place, relation) AS t`) + "\n\n"
	if !found || !ends {
		t.Fatalf("%s lacks the lines %s and %s", page, from, to)
	}
	golden.Check(t, page, before+from+want+to+after)
}
