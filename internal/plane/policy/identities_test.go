package policy_test

import (
	"fmt"
	"maps"
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

// cacheModel has a cache, and the identities that it may return.
type cacheModel struct {
	cache      *policy.Identities
	now        time.Time
	generation uint64                              // of the last eviction
	begun      []uint64                            // the generations of the look-ups
	added      map[policy.Credential]addedIdentity // without those that were evicted
}

type addedIdentity struct {
	id *policy.Identity
	at time.Time
}

// evict evicts identities from the cache, and those for which matches returns true from the model.
func (m *cacheModel) evict(evict func(), matches func(of policy.Credential, id *policy.Identity) bool) {
	m.generation++
	evict()
	maps.DeleteFunc(m.added, func(of policy.Credential, a addedIdentity) bool { return matches(of, a.id) })
}

// add ends a look-up, perhaps one of long ago.
func (m *cacheModel) add(t *rapid.T, n int, user string) {
	begun := rapid.SampledFrom(m.begun).Draw(t, "look-up")
	id := cachedKey(n, rapid.Bool().Draw(t, "known"))
	of := policy.Credential{Digest: id.Digest}
	if rapid.IntRange(0, 3).Draw(t, "user") == 0 {
		id = &policy.Identity{User: user, Known: id.Known}
		of = policy.Credential{User: user}
	}
	added := m.cache.Add(id, "", begun, m.now)
	if added == (m.generation > begun) {
		t.Fatalf("a look-up of generation %d: got added %t after the eviction %d", begun, added, m.generation)
	}
	if added {
		m.added[of] = addedIdentity{id, m.now}
	}
}

// check compares the cache with the model.
func (m *cacheModel) check(t *rapid.T, most int) {
	found := 0
	for n := range 15 {
		for _, of := range []policy.Credential{{Digest: policy.Digest(fmt.Sprint(n))},
			{User: fmt.Sprint("user", n)}} {
			id, at := policy.FindIdentity(m.cache, of, m.now)
			want := m.added[of]
			switch {
			case id == nil:
			case id != want.id || at != want.at.UnixMicro():
				t.Fatalf("%q: got %+v of %d, want %+v of %v", of, id, at, want.id, want.at)
			case id.Known || id.User != "":
				found++
			case !m.now.Before(want.at.Add(policy.UnknownTTL)):
				t.Fatalf("%q is unknown since %v at %v", of, want.at, m.now)
			}
		}
	}
	if n, _ := m.cache.Len(); n != found || n > most {
		t.Fatalf("got %d identities, and %d in Len, want the same and at most %d", found, n, most)
	}
}

// The cache returns the identity that was added last, unless it was evicted. A look-up that began before an
// eviction adds nothing. The cache never exceeds its capacity.
func TestCachedIdentitiesAreWhatWasReadLast(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.IntRange(1, 12).Draw(t, "most")
		m := &cacheModel{cache: policy.NewIdentities(most), now: policytest.Now, begun: []uint64{0},
			added: map[policy.Credential]addedIdentity{}}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			n := rapid.IntRange(0, 14).Draw(t, "n")
			digest, user := policy.Digest(fmt.Sprint(n)), fmt.Sprint("user", n%3)
			switch rapid.IntRange(0, 20).Draw(t, "step") {
			case 0:
				m.evict(m.cache.EvictAll, func(policy.Credential, *policy.Identity) bool { return true })
			case 1, 2, 3:
				m.evict(func() { m.cache.EvictUser(user) },
					func(_ policy.Credential, id *policy.Identity) bool { return id.User == user })
			case 4, 5, 6:
				m.evict(func() { m.cache.EvictKey(digest) },
					func(of policy.Credential, _ *policy.Identity) bool { return of.Digest == digest })
			case 7, 8, 9:
				m.now = m.now.Add(time.Duration(rapid.IntRange(0, 3).Draw(t, "seconds")) * time.Second)
			case 10, 11, 12, 13, 14:
				m.begun = append(m.begun, m.cache.Generation())
			default:
				m.add(t, n, user)
			}
			m.check(t, most)
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
		t.Errorf("got %+v for a key that was made, want it evicted", id)
	}
}
