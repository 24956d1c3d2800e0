package command_test

import (
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
)

// Keys leave the database as digests, and only on request.
func TestAnExportHasNoKey(t *testing.T) {
	s := newShell(t, schema.File)
	s.must("users", "set", "acme", "tier=anonymous")
	key := strings.TrimSpace(s.must("keys", "create", "--user", "acme", "--name", "production"))
	digest := one[string](s, "SELECT encode(digest, 'hex') FROM rate_limit_api_keys")
	if got := s.must("policy", "export"); strings.Contains(got, digest) || strings.Contains(got, "acme") {
		t.Errorf("without --users the export has\n%s\nwant neither the digest nor the user", got)
	}
	all := s.must("policy", "export", "--users")
	if !strings.Contains(all, digest) || strings.Contains(all, key) {
		t.Errorf("with --users the export has\n%s\nwant the digest, and not the key", all)
	}
	s.sql("TRUNCATE rate_limit_users CASCADE")
	s.stdin = all
	s.must("policy", "apply", "-")
	s.stdin = key
	if got := s.must("explain", "--key", "-"); !strings.Contains(got, "acme") {
		t.Errorf("explain prints\n%s\nwant the user acme of the key", got)
	}
	s.stdin = strings.ReplaceAll(all, `\x`+digest, key)
	if out := s.run("policy", "apply", "-"); out.err == nil || strings.Contains(out.err.Error(), key[:12]) {
		t.Errorf("with a key in place of a digest: %v, want an error without the key", out.err)
	}
}

// A file is applied as the dry run said, comes back from export as it was, and then changes nothing.
func TestApplyDoesWhatADryRunSaid(t *testing.T) {
	s := newShell(t, schema.File)
	s.sql(
		`INSERT INTO rate_limit_rules (name, paths) SELECT 'r' || i, ARRAY['/' || i]
			FROM generate_series(1, 200) AS i;
		INSERT INTO rate_limit_rule_limits (rule, name, events, per)
			SELECT name, 'l', 9, '1 h' FROM rate_limit_rules`,
	)
	file := s.must("policy", "export")
	s.sql(`DELETE FROM rate_limit_rules WHERE name < 'r5';
		UPDATE rate_limit_rule_limits SET events = 8; SELECT rate_limit_rule('other', action => 'block')`)
	s.stdin = file
	said := s.must("policy", "apply", "-", "--prune", "--json", "--dry-run")
	if did := s.must("policy", "apply", "-", "--prune", "--json"); did != said {
		t.Errorf("apply did\n%s\nwant, as the dry run said,\n%s", did, said)
	}
	if again := s.must("policy", "export"); again != file {
		t.Errorf("the policy is then\n%s\nwant\n%s", again, file)
	}
	const changes = "SELECT count(*) FROM rate_limit_changes"
	before := one[int64](s, changes)
	if got := s.must("policy", "apply", "-", "--prune"); got != "The policy is as the file has it.\n" ||
		one[int64](s, changes) != before {
		t.Errorf("the second time apply printed %q, want no change", got)
	}
}
