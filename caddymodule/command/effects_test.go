package command_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

func TestExplainChargesNothing(t *testing.T) {
	s := newShell(t, schema.File)
	s.must("rules", "set", "plan", "per_hour=10", "per_day=10", "count_by=all")
	s.must("rules", "set", "kept", "per_month=10", "durable=true", "algorithm=token_bucket", "per_minute=7", "count_by=all")
	s.sql("INSERT INTO rate_limit_ephemeral (prefix, key, count, window_start, expires_at) VALUES ('rule/plan/per_hour', 'all', 3, now(), now() + interval '2 h')")
	before := s.everything()
	for range 3 {
		s.must("explain", "--path", "/x")
	}
	if after := s.everything(); after != before {
		t.Errorf("explain has changed\n%s\nto\n%s", before, after)
	}
}

func TestARotatedKeyKeepsItsOverridesAndBans(t *testing.T) {
	s := newShell(t, schema.File)
	s.must("rules", "set", "plan", "per_hour=10", "count_by=key")
	s.must("users", "set", "acme", "tier=anonymous")
	key := strings.TrimSpace(s.must("keys", "create", "--user", "acme", "--expires", "90d"))
	s.sql("INSERT INTO rate_limit_overrides (rule, limit_name, key_id, events, reason) VALUES ('plan', 'per_hour', 1, 77, 'a pilot')")
	rotated := strings.TrimSpace(s.must("keys", "rotate", "1", "--grace", "1h"))
	explain := func(key string) admin.Explanation {
		t.Helper()
		var e admin.Explanation
		s.stdin = key
		if err := json.Unmarshal([]byte(s.must("explain", "--json", "--key", "-")), &e); err != nil {
			t.Fatal(err)
		}
		return e
	}
	for id, k := range map[int64]string{1: key, 2: rotated} {
		e := explain(k)
		if e.Key == nil || e.Key.ID != id || e.Key.State != "valid" || len(e.Limits) != 1 || *e.Limits[0].Quota != 77 || e.Limits[0].AmountFrom != "key" {
			t.Errorf("key %d: %+v", id, e)
		}
	}
	if same := one[bool](s, "SELECT a.expires_at = b.expires_at FROM rate_limit_api_keys a, rate_limit_api_keys b WHERE a.id = 1 AND b.id = 2"); !same {
		t.Error("the new key has another end")
	}

	// A ban is not lost by a rotation, and without a grace the old key ends at once.
	s.sql("INSERT INTO rate_limit_bans (key_id, reason) VALUES (2, 'leaked')")
	s.must("keys", "rotate", "2", "--grace", "0s")
	if e := explain(rotated); e.Key.State != "revoked" || e.Status != 401 {
		t.Errorf("the old key: %+v", e)
	}
	if n := one[int](s, "SELECT count(*)::int FROM rate_limit_bans WHERE key_id = 3 AND reason = 'leaked'"); n != 1 {
		t.Errorf("%d bans of the new key, want 1", n)
	}
}

func TestAFailedChangeChangesNothing(t *testing.T) {
	s := newShell(t, schema.File)
	s.must("rules", "set", "plan", "per_hour=10")
	before := s.everything()
	s.fails([]string{"tiers", "gold"}, "rules", "set", "plan", "limit.ten=1/10s", "per_hour=", "tiers=gold")
	s.fails([]string{"tier", "gold"}, "tiers", "rename", "gold", "silver")
	s.fails([]string{"tier", "gold"}, "users", "set", "new", "plan/per_hour=3", "tier=gold")
	s.fails([]string{"plan/nothing"}, "users", "set", "new", "tier=anonymous", "plan/nothing=3")
	if after := s.everything(); after != before {
		t.Errorf("failed commands have changed\n%s\nto\n%s", before, after)
	}
}
