package command_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
)

func TestArchive(t *testing.T) {
	s := newShell(t, schema.File)
	dir := t.TempDir()
	s.sql("UPDATE rate_limit_retention SET keep = '30 days' WHERE what = 'audit'")
	if got := s.must("archive", "--before", "60d", "--to", dir); !strings.HasPrefix(got,
		"No day of the audit log that is not archived yet ended before 20") {
		t.Errorf("without rows it printed %q, want that no day ended before", got)
	}
	s.sql("SELECT rate_limit_make_partition((now() AT TIME ZONE 'UTC')::date - n) FROM generate_series(1, " +
		"70) n WHERE n IN (61, 62, 10)")
	s.sql("INSERT INTO rate_limit_audit (time, cost, duration_us, outcome, prefix, node) SELECT now() - n " +
		"* interval '1 day', 1, 5, 'limited', 'login', 'n1' FROM unnest('{61, 62, 62, 10}'::int[]) n")
	var days []struct {
		Day, Outcome, File string
		Rows, Bytes        int64
		Dropped            bool
	}
	if err := json.Unmarshal([]byte(s.must("archive", "--before", "60d", "--to", dir, "--json")),
		&days); err != nil || len(days) != 2 {
		t.Fatalf("it printed %+v as JSON, %v, want 2 days", days, err)
	}
	if d := days[0]; d.Outcome != "archived" || d.Rows != 2 || d.Bytes == 0 || d.Dropped {
		t.Errorf("the first day: %+v, want 2 rows archived", d)
	}
	got := s.must("archive", "--before", "60d", "--to", dir, "--drop")
	for _, d := range days {
		if !regexp.MustCompile(d.Day + ` .* unchanged +yes +` + regexp.QuoteMeta(d.File)).MatchString(got) {
			t.Errorf("with --drop it printed %q, want a line about %s", got, d.Day)
		}
		if _, err := os.Stat(filepath.Join(dir, d.File)); err != nil {
			t.Error(err)
		}
	}
	if n := one[int64](s, "SELECT count(*) FROM rate_limit_audit"); n != 1 {
		t.Errorf("%d rows are left, want 1", n)
	}
}

func TestArchiveReportsInvalidArguments(t *testing.T) {
	s := newShell(t, schema.File)
	dir := t.TempDir()
	tomorrow := time.Now().AddDate(0, 0, 2).Format(time.DateOnly)
	for _, c := range []struct {
		want string
		args []string
	}{
		{`"before"`, []string{"--to", dir}},
		{`"to"`, []string{"--before", "60d"}},
		{"--before: \"soon\"", []string{"--before", "soon", "--to", dir}},
		{"in the past", []string{"--before", tomorrow, "--to", dir}},
		{"a folder that exists", []string{"--before", "60d", "--to", filepath.Join(dir, "missing")}},
		{"has no arguments", []string{"--before", "60d", "--to", dir, "more"}},
	} {
		s.fails([]string{c.want}, append([]string{"archive"}, c.args...)...)
	}
	if out := s.run("archive", "--before", "90d", "--to", dir); out.err != nil ||
		!strings.Contains(out.stderr, "Warning: --before") || !strings.Contains(out.stderr,
		"rate_limit_retention") {
		t.Errorf("with the default retention: %v, %q, want a warning", out.err, out.stderr)
	}
	// Nothing that may be a secret is repeated.
	for _, to := range []string{"s3://id:secret@bucket", "https://id:secret@host/bucket", "s3://"} {
		out := s.run("archive", "--before", "60d", "--to", to)
		if out.err == nil || strings.Contains(out.stdout+out.stderr, "secret") ||
			!strings.Contains(out.stderr, "--to") {
			t.Errorf("--to %s: %v, %q, want an error of --to without the secret", to, out.err, out.stderr)
		}
	}
}
