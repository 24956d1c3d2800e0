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

func newIdentity(n int, known bool) *policy.Identity {
	id := &policy.Identity{Digest: policy.Digest(fmt.Sprint(n)), Known: known}
	if known {
		id.KeyID = int64(n + 1)
		id.User = fmt.Sprint("user", n%3)
	}
	return id
}

// cacheModel holds a cache and the identities that it may return.
type cacheModel struct {
	cache       *policy.IdentityCache
	now         time.Time
	generation  uint64                              // the number of evictions so far
	generations []uint64                            // the generations of started look-ups
	added       map[policy.Credential]addedIdentity // identities that were added and not evicted
}

type addedIdentity struct {
	id *policy.Identity
	at time.Time
}

// evict calls do, which evicts the identities that match from the cache, and deletes them from the model.
func (m *cacheModel) evict(do func(), matches func(sender policy.Credential, id *policy.Identity) bool) {
	m.generation++
	do()
	maps.DeleteFunc(m.added, func(sender policy.Credential, a addedIdentity) bool {
		return matches(sender, a.id)
	})
}

// add adds the result of a random look-up that has started.
func (m *cacheModel) add(t *rapid.T, n int, user string) {
	generation := rapid.SampledFrom(m.generations).Draw(t, "look-up")
	id := newIdentity(n, rapid.Bool().Draw(t, "known"))
	sender := policy.Credential{Digest: id.Digest}
	if rapid.IntRange(0, 3).Draw(t, "user") == 0 {
		id = &policy.Identity{User: user, Known: id.Known}
		sender = policy.Credential{User: user}
	}
	added := m.cache.Add(id, "", generation, m.now)
	if added == (m.generation > generation) {
		t.Fatalf("Add with generation %d at generation %d: got %t, want %t", generation, m.generation, added,
			!added)
	}
	if added {
		m.added[sender] = addedIdentity{id, m.now}
	}
}

// check compares the cache with the model.
func (m *cacheModel) check(t *rapid.T, capacity int) {
	count := 0
	for n := range 15 {
		for _, sender := range []policy.Credential{{Digest: policy.Digest(fmt.Sprint(n))},
			{User: fmt.Sprint("user", n)}} {
			id, at := policy.FindIdentity(m.cache, sender, m.now)
			want := m.added[sender]
			switch {
			case id == nil:
			case id != want.id || at != want.at.UnixMicro():
				t.Fatalf("FindIdentity(%q): got %+v read at %d, want %+v read at %v", sender, id, at, want.id,
					want.at)
			case id.Known || id.User != "":
				count++
			case !m.now.Before(want.at.Add(policy.UnknownTTL)):
				t.Fatalf("FindIdentity(%q) at %v: got a key that is unknown since %v, want nil", sender,
					m.now, want.at)
			}
		}
	}
	if n, _ := m.cache.Len(); n != count || n > capacity {
		t.Fatalf("Len: got %d, want %d, the number of identities found, and at most %d", n, count, capacity)
	}
}

// The cache returns the last added identity, unless it was evicted. A look-up that started before an eviction
// adds nothing. The cache never exceeds its capacity.
func TestCacheReturnsLastAddedIdentity(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity := rapid.IntRange(1, 12).Draw(t, "most")
		m := &cacheModel{cache: policy.NewIdentityCache(capacity), now: policytest.Now,
			generations: []uint64{0},
			added:       map[policy.Credential]addedIdentity{}}
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
					func(s policy.Credential, _ *policy.Identity) bool { return s.Digest == digest })
			case 7, 8, 9:
				m.now = m.now.Add(time.Duration(rapid.IntRange(0, 3).Draw(t, "seconds")) * time.Second)
			case 10, 11, 12, 13, 14:
				m.generations = append(m.generations, m.cache.Generation())
			default:
				m.add(t, n, user)
			}
			m.check(t, capacity)
		}
	})
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
