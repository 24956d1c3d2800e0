package policy

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// DefaultIdentities is the default size of the cache of identities.
	DefaultIdentities = 100000

	// MaxUnknown bounds the unknown keys in the cache.
	MaxUnknown = 10000
	// UnknownTTL is the time for which an unknown key stays in the cache.
	UnknownTTL    = 5 * time.Second
	unknownMicros = int64(UnknownTTL / time.Microsecond)
)

// Credential identifies a sender: by the digest of an API key, or by the user that the proxy authenticated.
type Credential struct {
	Digest string // "" without an API key
	User   string // "" for an API key
}

func credentialOf(id *Identity) Credential {
	if id.Digest == "" {
		return Credential{User: id.User}
	}
	return Credential{Digest: id.Digest}
}

// Identities caches API keys and users of the database. A full cache evicts by second chance, in the random
// order of a map: it passes over a used entry once. Unknown keys have a map of their own, so that invented
// keys evict no real ones. When that map is full, it is emptied.
//
// A look-up must not cache a state from before an eviction. A look-up therefore begins with Generation, and
// Add caches nothing if an identity was evicted since. A change during a statement is rare.
type Identities struct {
	capacity int

	mu         sync.RWMutex // guards what follows
	entries    map[Credential]*cached
	texts      map[string]*cached     // those of entries with a text, by it
	users      map[string][]*cached   // those of entries with a user, by user
	unknown    map[Credential]*cached // keys that the database does not have
	generation uint64
}

// cached is an entry of the cache.
type cached struct {
	credential Credential
	text       string // the API key, if Recall may find it
	id         *Identity
	at         int64  // the time of the read, in microseconds
	used       uint32 // atomic; 1 from a use until an eviction passes over it
}

// NewIdentities returns an empty cache for most identities. Below 1, most means DefaultIdentities.
func NewIdentities(most int) *Identities {
	if most < 1 {
		most = DefaultIdentities
	}
	c := &Identities{capacity: most}
	c.empty()
	return c
}

func (c *Identities) empty() {
	c.entries = make(map[Credential]*cached)
	c.texts = make(map[string]*cached)
	c.users = make(map[string][]*cached)
	c.unknown = make(map[Credential]*cached)
}

// FindIdentity returns a cached identity and the time of its read, in microseconds since the Unix epoch. It
// returns nil if the identity must be looked up. If the identity is not Known, the database does not have the
// key.
func FindIdentity(c *Identities, of Credential, now time.Time) (*Identity, int64) {
	c.mu.RLock()
	e := c.entries[of]
	if e == nil {
		e = c.unknown[of]
		if e != nil && now.UnixMicro() >= e.at+unknownMicros {
			e = nil
		}
	}
	c.mu.RUnlock()
	if e == nil {
		return nil, 0
	}
	if atomic.LoadUint32(&e.used) == 0 {
		atomic.StoreUint32(&e.used, 1)
	}
	return e.id, e.at
}

// Generation returns the value that a look-up which begins now must pass to Add.
func (c *Identities) Generation() uint64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.generation
}

// Add caches the result of a look-up. Recall finds the identity by text, unless that is "". Add reports false
// and caches nothing if an identity was evicted since generation. The identity must then be looked up again.
func (c *Identities) Add(id *Identity, text string, generation uint64, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.generation != generation {
		return false
	}
	e := &cached{credential: credentialOf(id), id: id, at: now.UnixMicro()}
	if old := c.entries[e.credential]; old != nil && text == "" {
		text = old.text
	}
	c.remove(e.credential)
	if !id.Known && e.credential.User == "" {
		if len(c.unknown) >= MaxUnknown {
			c.unknown = make(map[Credential]*cached)
		}
		c.unknown[e.credential] = e
		return true
	}
	for len(c.entries) >= c.capacity {
		c.evictOne()
	}
	c.entries[e.credential] = e
	if text != "" {
		e.text = text
		c.texts[text] = e
	}
	if id.User != "" {
		c.users[id.User] = append(c.users[id.User], e)
	}
	return true
}

// evictOne evicts an identity that was not used since evictOne last passed over it. If there is none, it only
// passes over all.
func (c *Identities) evictOne() {
	for of, e := range c.entries {
		if !atomic.CompareAndSwapUint32(&e.used, 1, 0) {
			c.remove(of)
			return
		}
	}
}

// remove deletes the identity of a credential from all maps.
func (c *Identities) remove(of Credential) {
	delete(c.unknown, of)
	e := c.entries[of]
	if e == nil {
		return
	}
	delete(c.entries, of)
	delete(c.texts, e.text)
	user := e.id.User
	var left []*cached
	for _, other := range c.users[user] {
		if other != e {
			left = append(left, other)
		}
	}
	c.users[user] = left
	if len(left) == 0 {
		delete(c.users, user)
	}
}

// EvictKey evicts an API key, known or unknown.
func (c *Identities) EvictKey(digest string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.generation++
	c.remove(Credential{Digest: digest})
}

// EvictUser evicts a user and the user's keys.
func (c *Identities) EvictUser(user string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.generation++
	all := c.users[user]
	delete(c.users, user)
	for i := range all {
		c.remove(all[i].credential)
	}
}

// EvictAll empties the cache.
func (c *Identities) EvictAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.generation++
	c.empty()
}

// Len returns the numbers of cached identities and unknown keys.
func (c *Identities) Len() (identities, unknown int) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	identities = len(c.entries)
	unknown = len(c.unknown)
	return identities, unknown
}
