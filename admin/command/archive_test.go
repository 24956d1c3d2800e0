package command_test

import (
	"fmt"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

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
