package policy_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
)

// recallOutcome returns a short text of the outcome of Recall for a GET request, or "not remembered".
func recallOutcome(p *policy.Policy, key string) string {
	facts := policy.Facts{DefaultTier: "anonymous", RejectUnknown: true, Method: "GET",
		Host: "api.example.com", Path: "/"}
	var v policy.Verdict
	if !policy.Recall(p, key, &facts, &v) {
		return "not remembered"
	}
	return verdictText(&v)
}

// Recall finds a key for a minute after its look-up. Of many keys, it finds only as many as the cache has
// identities.
func TestRecalledKeysAreBounded(t *testing.T) {
	d := newTestDB(t)
	for i := range 20 {
		d.addUser(fmt.Sprint("user", i), "free")
	}
	p := d.newPolicy(policy.Settings{MemoSize: 100, MaxIdentities: 3})
	refresh(t, p)
	for i := range 20 {
		for range 2 {
			verdictOf(t, p, fmt.Sprint("key of user", i), "")
		}
	}
	known := 0
	for i := range 20 {
		if recallOutcome(p, fmt.Sprint("key of user", i)) != "not remembered" {
			known++
		}
	}
	if cached := p.Stats().Identities; known != 3 || cached != 3 {
		t.Errorf("got %d recalled keys and %d cached, want 3", known, cached)
	}
	check.Equal(t, "a key", recallOutcome(p, "key of user19"), "user19 free")
	d.advance(time.Minute)
	check.Equal(t, "a key after a minute", recallOutcome(p, "key of user19"), "not remembered")
}
