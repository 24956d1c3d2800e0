package changes_test

import (
	"context"
	_ "embed"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/sqltest"
)

func TestTranscripts(t *testing.T) { sqltest.ReplayTranscripts(t) }

// apply applies a document, and returns the differences, one a line.
func apply(t testing.TB, s *sqltest.DB, document, options string) (string, error) {
	t.Helper()
	var text *string
	err := s.Conn.QueryRow(context.Background(),
		"SELECT string_agg(concat_ws(' ', a.section, a.name, a.what, a.before, a.after), E'\n') FROM "+
			"rate_limit_apply($1::text::jsonb"+options+") a",
		document).Scan(&text)
	if err != nil || text == nil {
		return "", err
	}
	return *text, nil
}

// contentSQL returns the content of the policy's tables, without ids and times of rows.
//
//go:embed testdata/content.sql
var contentSQL string

// Applied to an empty database, the document of a policy creates the same policy. Applied to its own
// database, the document changes nothing.
func TestPolicyDocumentRoundTrips(t *testing.T) {
	const documentSQL = "SELECT rate_limit_policy(true)::text"
	for _, name := range []string{"odd_policy", "right_rows", "unusable_rules", "near", "renames"} {
		t.Run(name, func(t *testing.T) {
			s, empty := sqltest.New(t), sqltest.Open(t, schema.File)
			golden.Replay(t, "testdata/"+name+".txt", s.Replay)
			content, document := s.Query(contentSQL), s.Query(documentSQL)
			if changes, err := apply(t, s, document, ", true"); err != nil || changes != "" {
				t.Fatalf("the document changes %q in its own database: %v\n%s", changes, err, document)
			}
			if _, err := apply(t, empty, document, ""); err != nil {
				t.Fatalf("an empty database refuses the document: %v\n%s", err, document)
			}
			empty.Expect(documentSQL, document)
			empty.Expect(contentSQL, content)
		})
	}
}

// If a document of 10,000 rules equals the policy, it is compared in seconds, and writes no change.
func TestUnchangedDocumentWritesNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("it asserts a time")
	}
	s := sqltest.New(t)
	s.Exec(`INSERT INTO rate_limit_rules (name, priority, paths) SELECT 'r' || i, i, ARRAY['/a/' || i]
		FROM generate_series(1, 10000) AS i;
		INSERT INTO rate_limit_rule_limits (rule, name, events, per) SELECT name, 'per_hour', priority, '1 h'
			FROM rate_limit_rules`)
	changes := s.Query("SELECT max(seq) FROM rate_limit_changes")
	start := time.Now()
	if n := s.Query("SELECT count(*) FROM rate_limit_apply(rate_limit_policy(true), true)"); n != "0" {
		t.Errorf("%s differences, want 0", n)
	}
	if took := time.Since(start); took > 30*time.Second {
		t.Errorf("took %v, want at most 30s", took)
	}
	s.Expect("SELECT max(seq) FROM rate_limit_changes", changes)
}
