package command_test

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// The command archive writes the days before --before to files, and with --drop also deletes them. A second
// run writes no file again.
func TestArchiveWritesClosedDaysOnce(t *testing.T) {
	s := newShell(t, schema.File)
	dir := t.TempDir()
	s.sql("UPDATE rate_limit_retention SET keep = '30 days' WHERE what = 'audit'")
	// The days are 62, 61 and 10 days old, with 2, 1 and 1 rows. The first two are to be archived.
	s.sql("SELECT rate_limit_make_partition((now() AT TIME ZONE 'UTC')::date - n) FROM generate_series(1, " +
		"70) n WHERE n IN (61, 62, 10)")
	s.sql("INSERT INTO rate_limit_audit (time, cost, duration_us, outcome, prefix, node) SELECT now() - n " +
		"* interval '1 day', 1, 5, 'limited', 'login', 'n1' FROM unnest('{61, 62, 62, 10}'::int[]) n")
	type archivedDay struct {
		Day, Result, File string
		Rows, Bytes       int64
		Dropped           bool
	}
	var days []archivedDay
	output := s.mustRun("archive", "--before", "60d", "--to", dir, "--json")
	if err := json.Unmarshal([]byte(output), &days); err != nil || len(days) != 2 {
		t.Fatalf("archive printed the days %+v as JSON, error %v, want 2 days", days, err)
	}
	d := days[0]
	if want := (archivedDay{d.Day, "archived", d.File, 2, d.Bytes, false}); d != want || d.Bytes == 0 {
		t.Errorf("the first day is %+v, want %+v", d, want)
	}
	got := s.mustRun("archive", "--before", "60d", "--to", dir, "--drop")
	for _, d := range days {
		if !regexp.MustCompile(d.Day + ` .* unchanged +yes +` + regexp.QuoteMeta(d.File)).MatchString(got) {
			t.Errorf("with --drop archive printed %q, want a line for %s", got, d.Day)
		}
	}
}

// A role without the privilege to archive gets an error that names the owner of the tables.
func TestArchiveNamesThePermittedRole(t *testing.T) {
	s := newShell(t, schema.File)
	role := s.newRole()
	s.sql("GRANT SELECT ON rate_limit_audit TO " + role)
	s.sql("SELECT rate_limit_make_partition((now() AT TIME ZONE 'UTC')::date - 61)")
	to := t.TempDir()
	owner := cluster.Query[string](t, s.dsn, "SELECT current_user::text")
	want := regexp.MustCompile(fmt.Sprintf("the role %q may not archive.*GRANT %s TO ", role, owner))
	out := s.asRole(role).run("archive", "--before", "60d", "--to", to)
	if !want.MatchString(fmt.Sprint(out.err)) {
		t.Errorf("archive as the role: error %v, want %s", out.err, want)
	}
	if files, err := filepath.Glob(filepath.Join(to, "*")); err != nil || len(files) > 0 {
		t.Errorf("the destination has the files %q, error %v, want none", files, err)
	}
	s.sql("GRANT " + owner + " TO " + role)
	if out := s.asRole(role).run("archive", "--before", "60d", "--to", to); out.err != nil {
		t.Errorf("archive as a member of the owner: %v, want no error", out.err)
	}
}
