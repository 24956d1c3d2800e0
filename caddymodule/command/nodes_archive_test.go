package command_test

import (
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
)

func TestNodesSayWhenTheHistoryWasArchived(t *testing.T) {
	s := newShell(t, schema.File)
	if got := s.must("nodes"); strings.Contains(got, "Archive") {
		t.Errorf("without an archive it printed %q", got)
	}
	s.sql(`INSERT INTO rate_limit_archives (target, node, began_at, succeeded_at, failed_at, problem, files) VALUES
		('s3://logs/limits', 'edge-1', '2026-08-02 00:03Z', '2026-08-02 00:04Z', NULL, NULL, 3),
		('/srv/archive', 'edge-2', '2026-08-02 00:05Z', NULL, '2026-08-02 00:06Z', 'no space left' || chr(27), 0)`)
	got := s.must("nodes")
	for _, want := range []string{
		"Archive to s3://logs/limits: begun by edge-1 at 2026-08-02 00:03:00", "last success at 2026-08-02 00:04:00Z (3 files)\n",
		"Archive to /srv/archive: begun by edge-2 at 2026-08-02 00:05:00", "last success never, FAILED at 2026-08-02 00:06:00", "no space left",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("it printed %q, want %q", got, want)
		}
	}
	if strings.Contains(got, "\x1b") {
		t.Errorf("it printed a control character: %q", got)
	}
}
