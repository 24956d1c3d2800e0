package command_test

import (
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// An export never has API keys, and has their digests and users only with --users. After `policy apply` of
// these digests, their API keys are valid again. `policy apply` refuses an API key in place of a digest, and
// the error does not contain the key.
func TestExportHasNoKey(t *testing.T) {
	s := newShell(t, schema.File)
	s.mustRun("users", "set", "acme", "tier=anonymous")
	key := strings.TrimSpace(s.mustRun("keys", "create", "--user", "acme", "--name", "production"))
	digest := cluster.Query[string](t, s.dsn, "SELECT encode(digest, 'hex') FROM rate_limit_api_keys")
	if got := s.mustRun("policy", "export"); strings.Contains(got, digest) || strings.Contains(got, "acme") {
		t.Errorf("without --users the export has\n%s\nwant neither the digest nor the user", got)
	}
	export := s.mustRun("policy", "export", "--users")
	if !strings.Contains(export, digest) || strings.Contains(export, key) {
		t.Errorf("with --users the export has\n%s\nwant the digest, and not the key", export)
	}
	s.sql("TRUNCATE rate_limit_users CASCADE")
	s.stdin = export
	s.mustRun("policy", "apply", "-")
	s.stdin = key
	if got := s.mustRun("explain", "--key", "-"); !strings.Contains(got, "acme") {
		t.Errorf("explain prints\n%s\nwant the user acme of the key", got)
	}
	s.stdin = strings.ReplaceAll(export, `\x`+digest, key)
	if out := s.run("policy", "apply", "-"); out.err == nil || strings.Contains(out.err.Error(), key[:12]) {
		t.Errorf("policy apply with a key in place of a digest: error %v, want one without the key", out.err)
	}
}

// `policy apply` makes the changes that the dry run printed. After that, `policy export` prints the file, and
// a second `policy apply` of the file says that nothing changes.
func TestApplyMakesTheChangesOfADryRun(t *testing.T) {
	s := newShell(t, schema.File)
	s.sql(
		`INSERT INTO rate_limit_rules (name, paths) SELECT 'r' || i, ARRAY['/' || i]
			FROM generate_series(1, 200) AS i;
		INSERT INTO rate_limit_rule_limits (rule, name, events, per)
			SELECT name, 'l', 9, '1 h' FROM rate_limit_rules`,
	)
	file := s.mustRun("policy", "export")
	s.sql(`DELETE FROM rate_limit_rules WHERE name < 'r5';
		UPDATE rate_limit_rule_limits SET events = 8; SELECT rate_limit_rule('other', action => 'block')`)
	s.stdin = file
	want := s.mustRun("policy", "apply", "-", "--prune", "--json", "--dry-run")
	check.Equal(t, "the changes of policy apply",
		s.mustRun("policy", "apply", "-", "--prune", "--json"), want)
	check.Equal(t, "the policy after policy apply", s.mustRun("policy", "export"), file)
	check.Equal(t, "what the second policy apply prints", s.mustRun("policy", "apply", "-", "--prune"),
		"The policy matches the file.\n")
}
