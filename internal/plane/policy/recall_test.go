package policy_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
)

// recalled returns a short text of the outcome of a GET request of an API key without the database, or
// "not remembered".
func recalled(p *policy.Policy, key string) string {
	facts := policy.Facts{Tier: "anonymous", RejectUnknown: true, Method: "GET", Host: "api.example.com",
		Path: "/"}
	var o policy.Verdict
	if !policy.Recall(p, key, &facts, &o) {
		return "not remembered"
	}
	return outcomeText(&o)
}

// Recall finds a key for a minute. The cache has no more keys than identities.
func TestRememberedKeysAreBounded(t *testing.T) {
	s := newSite(t)
	for i := range 20 {
		s.user(fmt.Sprint("user", i), "free")
	}
	p := s.policy(policy.Settings{Remember: 100, MaxIdentities: 3})
	refresh(t, p)
	for i := range 20 {
		for range 2 {
			decided(t, p, fmt.Sprint("key of user", i), "")
		}
	}
	known := 0
	for i := range 20 {
		if recalled(p, fmt.Sprint("key of user", i)) != "not remembered" {
			known++
		}
	}
	if known != 3 {
		t.Errorf("got %d cached keys, want 3", known)
	}
	same(t, "a key", recalled(p, "key of user19"), "user19 free")
	s.after(time.Minute)
	same(t, "a key after a minute", recalled(p, "key of user19"), "not remembered")
}

// Recall decides as a policy without a memo does, in random worlds.
func TestARecalledKeyIsDecidedAsAnyOther(t *testing.T) {
	simple := 0
	for seed := range 3 {
		s := newSite(t)
		pick := policytest.Numbers(seed)
		w := policytest.New(pick, 30, seed == 1)
		for _, sql := range w.SQL() {
			_, _ = s.pool.Exec(context.Background(), sql) // the database refuses some
		}
		for i := range 8 {
			user := fmt.Sprint("user", i)
			s.user(user, []string{"free", "pro", "enterprise"}[pick(3)])
			if pick(4) == 0 {
				s.exec("UPDATE rate_limit_api_keys SET expires_at = now() + $2 * interval '1 hour' WHERE "+
					"user_id = $1", user, pick(3)-1)
			}
			if pick(2) == 0 {
				s.exec(`INSERT INTO rate_limit_overrides (rule, limit_name, user_id, events)
					SELECT rule, name, $1, 3 FROM rate_limit_rule_limits
					ORDER BY hashtext(rule || $1) LIMIT 3`, user)
			}
			if pick(3) == 0 {
				s.exec("UPDATE rate_limit_users SET period_start = '2026-01-31' WHERE user_id = $1", user)
			}
		}
		plain := s.policy(policy.Settings{})
		remembering := s.policy(policy.Settings{Remember: 100})
		refresh(t, plain)
		refresh(t, remembering)
		var f policy.Facts
		var want, got policy.Verdict
		for range 1000 {
			w.Request(pick, &f)
			key := fmt.Sprint("key of user", pick(8))
			if err := plain.Evaluate(context.Background(), longTime, key, "", &f, &want); err != nil {
				t.Fatal(err)
			}
			for range 1 + pick(3) {
				if policy.Recall(plain, key, &f, &got) {
					t.Fatal("memory holds a key without Remember")
				}
				if policy.Recall(remembering, key, &f, &got) {
					same(t, fmt.Sprintf("%s to %+v", key, f), policytest.Text(&got), policytest.Text(&want))
					if got.Simple != want.Simple || got.Rule != want.Rule {
						t.Errorf("%s to %+v: simple %v of rule %q, want %v of %q", key, f, got.Simple,
							got.Rule, want.Simple, want.Rule)
					}
					if got.Simple {
						simple++
					}
				} else if err := remembering.Evaluate(context.Background(), longTime, key, "", &f,
					&got); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if simple == 0 {
		t.Error("no request of a recalled key was charged: the test shows nothing")
	}
	t.Logf("%d requests were charged", simple)
}
