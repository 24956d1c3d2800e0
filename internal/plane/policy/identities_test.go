package policy_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
)

func cachedKey(n int, known bool) *policy.Identity {
	id := &policy.Identity{Digest: policy.Digest(fmt.Sprint(n)), Known: known}
	if known {
		id.KeyID = int64(n + 1)
		id.User = fmt.Sprint("user", n%3)
	}
	return id
}

// The cache returns the identity that was added last, unless it was evicted. A look-up that began before an
// eviction adds nothing. The cache never exceeds its capacity.
func TestCachedIdentitiesAreWhatWasReadLast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.IntRange(1, 12).Draw(t, "most")
		c := policy.NewIdentities(most)
		type state struct {
			id *policy.Identity
			at time.Time
		}
		model := make(map[policy.Credential]*state)
		of := func(name policy.Credential) *state {
			if model[name] == nil {
				model[name] = &state{}
			}
			return model[name]
		}
		now := policytest.Now
		generation := uint64(0)
		evict := func(s *state) { s.id = nil }
		var begun []uint64
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			n := rapid.IntRange(0, 14).Draw(t, "n")
			user := fmt.Sprint("user", n%3)
			switch rapid.IntRange(0, 7).Draw(t, "step") {
			case 0, 1:
				begun = append(begun, c.Generation())
			case 2, 3: // a look-up ends, perhaps one of long ago
				if len(begun) == 0 {
					continue
				}
				at := rapid.IntRange(0, len(begun)-1).Draw(t, "look-up")
				id := cachedKey(n, rapid.Bool().Draw(t, "known"))
				name := policy.Credential{Digest: id.Digest}
				if rapid.IntRange(0, 3).Draw(t, "user") == 0 {
					id = &policy.Identity{User: user, Known: rapid.Bool().Draw(t, "known")}
					name = policy.Credential{User: user}
				}
				stale := !c.Add(id, "", begun[at], now)
				if stale != (generation > begun[at]) {
					t.Fatalf("a look-up of generation %d is stale: %t; the last eviction was %d", begun[at],
						stale, generation)
				}
				s := of(name)
				if !stale {
					s.id, s.at = id, now
				}
			case 4:
				generation++
				c.EvictKey(policy.Digest(fmt.Sprint(n)))
				evict(of(policy.Credential{Digest: policy.Digest(fmt.Sprint(n))}))
			case 5:
				generation++
				c.EvictUser(user)
				for _, s := range model {
					if s.id != nil && s.id.User == user {
						s.id = nil
					}
				}
				evict(of(policy.Credential{User: user}))
			case 6:
				if rapid.IntRange(0, 4).Draw(t, "all") == 0 {
					generation++
					c.EvictAll()
					for i := range 15 {
						evict(of(policy.Credential{Digest: policy.Digest(fmt.Sprint(i))}))
						evict(of(policy.Credential{User: fmt.Sprint("user", i%3)}))
					}
				}
			default:
				now = now.Add(time.Duration(rapid.IntRange(0, 3).Draw(t, "seconds")) * time.Second)
			}
			found := 0
			for name, s := range model {
				id, at := policy.FindIdentity(c, name, now)
				if id != nil && (id != s.id || at != s.at.UnixMicro()) {
					t.Fatalf("%q is %+v of %d, want %+v of %v", name, id, at, s.id, s.at)
				}
				if id == nil {
					continue
				}
				if id.Known || id.User != "" {
					found++
				} else if !now.Before(s.at.Add(policy.UnknownTTL)) {
					t.Fatalf("%q is unknown since %v at %v", name, s.at, now)
				}
			}
			if n, _ := c.Len(); n != found || n > most {
				t.Fatalf("%d identities found, %d counted, at most %d", found, n, most)
			}
		}
	})
}

func TestAKeyInUseOutlivesOthers(t *testing.T) {
	c := policy.NewIdentities(100)
	now := policytest.Now
	used := cachedKey(0, true)
	c.Add(used, "", 0, now)
	for n := 1; n < 10000; n++ {
		if id, _ := policy.FindIdentity(c, policy.Credential{Digest: used.Digest}, now); id != used {
			t.Fatalf("the key in use was evicted after %d others, want it cached", n)
		}
		c.Add(cachedKey(n, true), "", 0, now)
	}
	if n, _ := c.Len(); n != 100 {
		t.Errorf("got %d identities, want 100", n)
	}
}

func TestInventedKeysPushOutNothing(t *testing.T) {
	c := policy.NewIdentities(100)
	now := policytest.Now
	for n := range 100 {
		c.Add(cachedKey(n, true), "", 0, now)
	}
	for n := 1000; n < 1000+3*policy.MaxUnknown; n++ {
		c.Add(cachedKey(n, false), "", 0, now)
	}
	if known, unknown := c.Len(); known != 100 || unknown != policy.MaxUnknown {
		t.Errorf("got %d identities and %d unknown keys, want 100 and %d", known, unknown, policy.MaxUnknown)
	}
	last := cachedKey(1000+3*policy.MaxUnknown-1, false)
	for after, want := range map[time.Duration]bool{0: true, policy.UnknownTTL - time.Microsecond: true,
		policy.UnknownTTL: false} {
		if id, _ := policy.FindIdentity(c, policy.Credential{Digest: last.Digest},
			now.Add(after)); (id != nil) != want {
			t.Errorf("cached as unknown after %v: got %v, want %v", after, id != nil, want)
		}
	}
	// The key is made: the database now has it.
	c.EvictKey(last.Digest)
	if id, _ := policy.FindIdentity(c, policy.Credential{Digest: last.Digest}, now); id != nil {
		t.Error("a new key is still unknown")
	}
}
