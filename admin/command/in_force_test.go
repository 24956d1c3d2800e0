package command_test

import (
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
)

// A role that may not read the registry does not wait until proxies apply its change. testdata/in_force.txt
// has the commands that wait.
func TestRoleWithoutTheRegistryDoesNotWait(t *testing.T) {
	s := newShell(t, schema.File)
	role := s.newRole()
	s.sql("GRANT SELECT, INSERT, UPDATE ON rate_limit_tiers TO " + role)
	s.sql("GRANT SELECT ON rate_limit_changes TO " + role)
	s.sql("GRANT EXECUTE ON FUNCTION rate_limit_tier, rate_limit_set, rate_limit_write, rate_limit_fault " +
		"TO " + role)
	s.sql(`INSERT INTO rate_limit_nodes (node, report) VALUES ('proxy', '{"applied": "9999999:9999999:"}')`)
	if out := s.asRole(role).run("tiers", "set", "silver"); out.err != nil || out.stderr != "" {
		t.Errorf("without the registry: error %v, standard error %q; want none", out.err, out.stderr)
	}
	s.sql("GRANT SELECT ON rate_limit_nodes TO " + role)
	const want = "In force at 1 proxy after "
	out := s.asRole(role).run("tiers", "set", "silver", "rank=2")
	if out.err != nil || !strings.HasPrefix(out.stderr, want) {
		t.Errorf("with the registry: error %v, standard error %q; want %s", out.err, out.stderr, want)
	}
}
