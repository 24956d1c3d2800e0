package policy_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
)

func newIdentity(n int, known bool) *policy.Identity {
	id := &policy.Identity{Digest: policy.Digest(fmt.Sprint(n)), Known: known}
	if known {
		id.KeyID = int64(n + 1)
		id.User = fmt.Sprint("user", n%3)
	}
	return id
}

// A flood of invented keys evicts no identity, because the cache keeps at most MaxUnknown such keys. An
// invented key is cached only for a time.
func TestInventedKeysEvictNothing(t *testing.T) {
	c := policy.NewIdentityCache(100)
	now := policytest.Now
	for n := range 100 {
		c.Add(newIdentity(n, true), "", 0, now)
	}
	for n := 1000; n < 1000+3*policy.MaxUnknown; n++ {
		c.Add(newIdentity(n, false), "", 0, now)
	}
	if known, unknown := c.Len(); known != 100 || unknown != policy.MaxUnknown {
		t.Errorf("got %d identities and %d unknown keys, want 100 and %d", known, unknown, policy.MaxUnknown)
	}
	last := newIdentity(1000+3*policy.MaxUnknown-1, false)
	for after, want := range map[time.Duration]bool{0: true, policy.UnknownTTL - time.Microsecond: true,
		policy.UnknownTTL: false} {
		id, _ := policy.FindIdentity(c, policy.Credential{Digest: last.Digest}, now.Add(after))
		if got := id != nil; got != want {
			t.Errorf("unknown key is cached after %v: got %t, want %t", after, got, want)
		}
	}
}
