package schema_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/sqltest"
)

func TestTranscripts(t *testing.T) { sqltest.ReplayTranscripts(t) }

// A command violates each constraint of our tables, except NOT NULL and those of the tables of counts: in
// testdata/constraints.txt, or in the heading of the numbered file that makes it.
func TestEachConstraintIsBroken(t *testing.T) {
	text := sqltest.ReadFile(t, "testdata/constraints.txt")
	s := sqltest.New(t)
	for _, file := range sqlFiles(t) {
		for _, line := range heading.FindAllStringSubmatch(sqltest.ReadFile(t, file), -1) {
			if line[1] == "refuses" {
				text += "\n! " + s.ExpectError(line[2]).Message
			}
		}
	}
	names := s.Query(`SELECT CASE WHEN c.conname LIKE 'rate\_limit\_%'
			THEN format('"%s"', c.conname) ELSE format('"%s.*"%s"', c.conrelid::regclass, c.conname) END
		FROM pg_constraint c WHERE c.conrelid::regclass::text LIKE 'rate\_limit\_%'
			AND c.contype NOT IN ('n', 't') AND (c.conparentid <> 0 OR c.coninhcount = 0)
			AND NOT (SELECT t.relispartition FROM pg_class t WHERE t.oid = c.conrelid)
			AND c.conrelid::regclass::text NOT IN ('rate_limit_ephemeral', 'rate_limit_durable')`)
	for name := range strings.SplitSeq(names, "\n") {
		if !regexp.MustCompile("(?m)^! .*" + name).MatchString(text) {
			t.Errorf("no command of testdata/constraints.txt or of a heading violates %s", name)
		}
	}
}
