package policy

import (
	"sync"
	"time"
)

const (
	// DefaultIdentities is the default capacity of an IdentityCache.
	DefaultIdentities = 100000

	// MaxUnknown bounds the unknown keys in an IdentityCache.
	MaxUnknown = 10000
	// UnknownTTL is the time for which an unknown key stays cached.
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

// IdentityCache caches API keys and users of the database. A full cache evicts a random identity. Unknown
// keys have their own map, so that invented keys evict no real ones. A full map of unknown keys is emptied.
//
// A look-up must not cache a state from before an eviction. Therefore it calls Generation before it reads,
// and Add caches nothing if an identity was evicted since then. Few look-ups are repeated for this reason,
// because an eviction during a statement is rare.
type IdentityCache struct {
	capacity int

	mu         sync.RWMutex // guards the fields below
	entries    map[Credential]*cached
	texts      map[string]*cached          // the entries with a text, by text
	users      map[string]map[*cached]bool // the entries with a user, by user, and by the users above
	unknown    map[Credential]*cached      // keys that the database does not have
	generation uint64
}

// cached is an entry of the cache.
type cached struct {
	credential Credential
	text       string // the API key, if Recall may find it
	id         *Identity
	at         int64 // the time of the read, in microseconds since the Unix epoch
}

// NewIdentityCache returns an empty cache for capacity identities. A capacity below 1 means
// DefaultIdentities.
func NewIdentityCache(capacity int) *IdentityCache {
	if capacity < 1 {
		capacity = DefaultIdentities
	}
	c := &IdentityCache{capacity: capacity}
	c.empty()
	return c
}

func (c *IdentityCache) empty() {
	c.entries = map[Credential]*cached{}
	c.texts = map[string]*cached{}
	c.users = map[string]map[*cached]bool{}
	c.unknown = map[Credential]*cached{}
}

// FindIdentity returns a cached identity and the time of its read, in microseconds since the Unix epoch.
// FindIdentity returns nil if the identity must be looked up. If the database does not have the key, the
// identity is not Known.
func FindIdentity(c *IdentityCache, credential Credential, now time.Time) (*Identity, int64) {
	c.mu.RLock()
	e := c.entries[credential]
	if e == nil {
		e = c.unknown[credential]
		if e != nil && now.UnixMicro() >= e.at+unknownMicros {
			e = nil
		}
	}
	c.mu.RUnlock()
	if e == nil {
		return nil, 0
	}
	return e.id, e.at
}

// Generation returns the value to pass to Add after a look-up that starts now.
func (c *IdentityCache) Generation() uint64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.generation
}

// Add caches the result of a look-up. If text is not "", Recall finds the identity by this text. Add reports
// false and caches nothing if an identity was evicted since generation. The identity must then be looked up
// again.
func (c *IdentityCache) Add(id *Identity, text string, generation uint64, now time.Time) bool {
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
			c.unknown = map[Credential]*cached{}
		}
		c.unknown[e.credential] = e
		return true
	}
	if len(c.entries) >= c.capacity {
		for credential := range c.entries {
			c.remove(credential)
			break
		}
	}
	c.entries[e.credential] = e
	if text != "" {
		e.text = text
		c.texts[text] = e
	}
	for _, user := range usersOf(id) {
		if c.users[user] == nil {
			c.users[user] = map[*cached]bool{}
		}
		c.users[user][e] = true
	}
	return true
}

// remove deletes the identity of a sender from all maps.
func (c *IdentityCache) remove(credential Credential) {
	delete(c.unknown, credential)
	e := c.entries[credential]
	if e == nil {
		return
	}
	delete(c.entries, credential)
	delete(c.texts, e.text)
	for _, user := range usersOf(e.id) {
		delete(c.users[user], e)
		if len(c.users[user]) == 0 {
			delete(c.users, user)
		}
	}
}

// usersOf returns the user of an identity, if it has one, and the users above.
func usersOf(id *Identity) []string {
	var users []string
	for ; id != nil && id.User != ""; id = ParentOf(id) {
		users = append(users, id.User)
	}
	return users
}

// evict evicts the changed identities, and clears them in due: all identities, or the changed users and all
// below them with their API keys, and the changed API keys, known or unknown.
func (c *IdentityCache) evict(due *changes) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if due.identities {
		c.empty()
	}
	for _, user := range due.users {
		for e := range c.users[user] {
			c.remove(e.credential)
		}
	}
	for _, digest := range due.digests {
		c.remove(Credential{Digest: digest})
	}
	if due.identities || due.users != nil || due.digests != nil {
		c.generation++
	}
	due.identities = false
	due.users = nil
	due.digests = nil
}

// Len returns the numbers of cached identities and of cached unknown keys.
func (c *IdentityCache) Len() (identities, unknown int) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	identities = len(c.entries)
	unknown = len(c.unknown)
	return identities, unknown
}

// keyProblem returns the reason why the API key of an identity is not valid, or NoReason.
func keyProblem(id *Identity, at int64) Reason {
	switch {
	case id.unread:
	case !id.Known:
		return UnknownKey
	case at >= endOf(id.RevokedAt):
		return KeyRevoked
	case at >= endOf(id.ExpiresAt):
		return KeyExpired
	}
	return NoReason
}
