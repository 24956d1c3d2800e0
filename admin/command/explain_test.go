package command_test

import (
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
)

// The command `explain` changes no row in any table.
func TestExplainChargesNothing(t *testing.T) {
	s := newShell(t, schema.File)
	s.mustRun("rules", "set", "plan", "per_hour=10", "per_day=10", "count_by=all")
	s.mustRun("rules", "set", "kept", "per_month=10", "durable=true", "algorithm=token_bucket",
		"per_minute=7", "count_by=all")
	s.sql("INSERT INTO rate_limit_ephemeral (prefix, key, count, window_start, expires_at) VALUES " +
		"('rule/plan/per_hour', 'all', 3, now(), now() + interval '2 h')")
	before := s.allRows()
	for range 3 {
		s.mustRun("explain", "--path", "/x", "--without-key", "anonymous")
	}
	if after := s.allRows(); after != before {
		t.Errorf("after explain the database has\n%s\nwant\n%s", after, before)
	}
}
