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
		t.Errorf("without --users the export has\n%s", got)
	}
	all := s.must("policy", "export", "--users")
	if !strings.Contains(all, digest) || strings.Contains(all, key) {
		t.Errorf("with --users the export has\n%s", all)
	}
	s.sql("TRUNCATE rate_limit_users CASCADE")
	s.stdin = all
	s.must("policy", "apply", "-")
	s.stdin = key
	if got := s.must("explain", "--key", "-"); !strings.Contains(got, "acme") {
		t.Errorf("the key is then of\n%s", got)
	}
	s.stdin = strings.ReplaceAll(all, `\x`+digest, key)
	if out := s.run("policy", "apply", "-"); out.err == nil || strings.Contains(out.err.Error(), key[:12]) {
		t.Errorf("a key in place of a digest: %v", out.err)
	}
}
