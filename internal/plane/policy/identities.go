package policy

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// DefaultIdentities is the default size of the cache of identities.
	DefaultIdentities = 100000

	// MostUnknown bounds the unknown keys in the cache.
	MostUnknown = 10000
	// UnknownFor is the time that an unknown key stays in the cache.
	UnknownFor    = 5 * time.Second
	unknownMicros = int64(UnknownFor / time.Microsecond)
)

// Credential identifies a sender, and its identity in the cache: the digest of an API key, or else a user
// that the proxy authenticated.
type Credential struct {
	Digest [32]byte
	User   string // "" for an API key
}

func credentialOf(id *Identity) Credential {
	if id.Digest == [32]byte{} {
		return Credential{User: id.User}
	}
	return Credential{Digest: id.Digest}
}

// Identities caches keys and users of the database. If it is full, it evicts one that was not used since it
// was last passed over (second chance, in the random order of a map). Keys that the database does not have
// are in a map of their own, so that invented keys evict no real ones. A full map of them is emptied.
//
// An identity that is evicted while a look-up of it is under way must not come back with what
// the look-up read before. A look-up therefore begins with Generation, and Add caches nothing if
// something was evicted since: a change that comes during a statement is rare.
type Identities struct {
	most int

	mu         sync.RWMutex // guards what follows
	known      map[Credential]*cached
	texts      map[string]*cached     // by API key, of the known ones that have a text
	users      map[string][]*cached   // by user; the user's keys, and the user
	unknown    map[Credential]*cached // keys that the database does not have
	generation uint64
}

// cached is an identity in a cache.
type cached struct {
	of   Credential
	text string // the API key, if Recall may find it
	id   *Identity
	at   int64  // when it was read, in microseconds
	used uint32 // 1 since its last use, until it is passed over; atomic
}

// NewIdentities returns an empty cache of so many identities; below 1 it is
// DefaultIdentities.
func NewIdentities(most int) *Identities {
	if most < 1 {
		most = DefaultIdentities
	}
	c := &Identities{most: most}
	c.empty()
	return c
}

func (c *Identities) empty() {
	c.known = make(map[Credential]*cached)
	c.texts = make(map[string]*cached)
	c.users = make(map[string][]*cached)
	c.unknown = make(map[Credential]*cached)
}

// FindIdentity returns the identity of a credential and when it was read from the database, in microseconds
// since the Unix epoch; or nil if it must be looked up. An identity that is not Known means that the database
// does not have the key.
func FindIdentity(c *Identities, of Credential, now time.Time) (*Identity, int64) {
	c.mu.RLock()
	e := c.known[of]
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

// Generation returns the argument of Add for a look-up that begins now.
func (c *Identities) Generation() uint64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.generation
}

// Add caches what a look-up read. Recall finds the identity by text, unless that is "". Add reports false if
// something was evicted after the look-up began: the identity is then not cached, and the database must be
// asked again.
func (c *Identities) Add(id *Identity, text string, generation uint64, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.generation != generation {
		return false
	}
	e := &cached{of: credentialOf(id), id: id, at: now.UnixMicro()}
	if old := c.known[e.of]; old != nil && text == "" {
		text = old.text
	}
	c.forget(e.of)
	if !id.Known && e.of.User == "" {
		if len(c.unknown) >= MostUnknown {
			c.unknown = make(map[Credential]*cached)
		}
		c.unknown[e.of] = e
		return true
	}
	for len(c.known) >= c.most {
		c.evictOne()
	}
	c.known[e.of] = e
	if text != "" {
		e.text = text
		c.texts[text] = e
	}
	if id.User != "" {
		c.users[id.User] = append(c.users[id.User], e)
	}
	return true
}

// evictOne evicts an identity that was not used, if it finds one.
func (c *Identities) evictOne() {
	for of, e := range c.known {
		if !atomic.CompareAndSwapUint32(&e.used, 1, 0) {
			c.forget(of)
			return
		}
	}
}

// forget removes the identity of a credential.
func (c *Identities) forget(of Credential) {
	delete(c.unknown, of)
	e := c.known[of]
	if e == nil {
		return
	}
	delete(c.known, of)
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
func (c *Identities) EvictKey(digest [32]byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.generation++
	c.forget(Credential{Digest: digest})
}

// EvictUser evicts a user and the user's keys.
func (c *Identities) EvictUser(user string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.generation++
	all := c.users[user]
	delete(c.users, user)
	for i := range all {
		c.forget(all[i].of)
	}
}

// EvictAll empties the cache.
func (c *Identities) EvictAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.generation++
	c.empty()
}

// Len returns the numbers of identities and of unknown keys in the cache.
func (c *Identities) Len() (identities, unknown int) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	identities = len(c.known)
	unknown = len(c.unknown)
	return identities, unknown
}
