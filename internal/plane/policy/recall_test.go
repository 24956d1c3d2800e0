package policy_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
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
