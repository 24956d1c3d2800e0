package policy

import (
	"sync"
	"sync/atomic"
	"time"
)

const (
	// DefaultIdentities is how many identities are cached by default.
	DefaultIdentities = 100000

	// MostUnknown is how many unknown keys are remembered.
	MostUnknown = 10000
	// UnknownFor is how long an unknown key is remembered.
	UnknownFor = 5 * time.Second
)

// NameOfKey and NameOfUser name an identity in the cache: an API key by its digest, and a user
// without a key by the id.
func NameOfKey(digest [32]byte) string { return "k" + string(digest[:]) }

// NameOfUser is the name of a user without an API key, see NameOfKey.
func NameOfUser(user string) string { return "u" + user }

func nameOfIdentity(id *Identity) string {
	if id.Digest == [32]byte{} {
		return NameOfUser(id.User)
	}
	return NameOfKey(id.Digest)
}

// Identities caches what the database knows of keys and users. It holds a fixed number of
// identities; if it is full, an identity that was not used since the last round is
// evicted (a second-chance list). Keys that the database does not know are in a small list of their own, so that
// invented keys do not push out real ones.
//
// An identity that is evicted while a look-up of it is under way must not come back with what
// the look-up read before. A look-up therefore begins with Generation, and Add discards what
// was evicted since.
type Identities struct {
	mu      sync.RWMutex // guards what follows
	entries map[string]*cached
	texts   map[string]*cached   // by API key, of the entries that have a text
	users   map[string][]*cached // by user; the user's keys, and the user
	list    []*cached            // nil elements are free
	free    []int                // slots of list
	hand    int                  // the slot of list that is tried next
	most    int
	unknown unknownKeys

	generation uint64
	evicted    []eviction // the last ones: that of generation g is at g modulo the length
}

// cached is an identity in the list.
type cached struct {
	name string
	text string // the API key, if rememberKey was called; guarded by the owner's mu
	id   *Identity
	at   int64  // when it was read, in microseconds
	slot int    // in list
	used uint32 // 1 since its last use, until the hand passes; atomic
}

// eviction is what one call evicted: a name, a user, or all.
type eviction struct {
	name, user string
	all        bool
}

// remembered evictions. A look-up that began before the oldest is discarded.
const rememberedEvictions = 1024

// NewIdentities returns an empty cache of so many identities; below 1 it is
// DefaultIdentities.
func NewIdentities(most int) *Identities {
	if most < 1 {
		most = DefaultIdentities
	}
	c := &Identities{most: most, evicted: make([]eviction, rememberedEvictions)}
	c.empty()
	return c
}

func (c *Identities) empty() {
	c.entries = make(map[string]*cached)
	c.texts = make(map[string]*cached)
	c.users = make(map[string][]*cached)
	c.list = c.list[:0]
	c.free = c.free[:0]
	c.hand = 0
	c.unknown = newUnknownKeys(MostUnknown, UnknownFor)
}

// FindIdentity returns the identity of that name and when it was read from the database, in
// microseconds since the Unix epoch; or nil if it must be looked up. An identity that is not
// Known is the answer that the database does not know the key.
func FindIdentity(c *Identities, name string, now time.Time) (*Identity, int64) {
	c.mu.RLock()
	e := c.entries[name]
	if e != nil {
		if atomic.LoadUint32(&e.used) == 0 {
			atomic.StoreUint32(&e.used, 1)
		}
		id := e.id
		at := e.at
		c.mu.RUnlock()
		return id, at
	}
	id, at := c.unknown.find(name, now.UnixMicro())
	c.mu.RUnlock()
	return id, at
}

// Generation is what a look-up gives to Add. It must be read before the database is asked.
func (c *Identities) Generation() uint64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.generation
}

// Add caches what a look-up read. It reports for how many identities it did not, because they
// were evicted after the look-up began; ask the database for them again.
func (c *Identities) Add(ids []*Identity, generation uint64, now time.Time) int {
	stale := 0
	at := now.UnixMicro()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range ids {
		name := nameOfIdentity(id)
		if c.wasEvicted(name, id.User, generation) {
			stale++
			continue
		}
		if !id.Known && name[0] == 'k' {
			c.remove(c.entries[name])
			c.unknown.add(name, id, at)
			continue
		}
		c.unknown.remove(name)
		c.put(&cached{name: name, id: id, at: at})
	}
	return stale
}

// wasEvicted reports whether an identity was evicted after a generation, or may have been.
func (c *Identities) wasEvicted(name, user string, generation uint64) bool {
	if c.generation-generation > rememberedEvictions {
		return true
	}
	for g := generation + 1; g <= c.generation; g++ {
		e := &c.evicted[g%rememberedEvictions]
		if e.all || e.name == name || e.user != "" && e.user == user {
			return true
		}
	}
	return false
}

// put adds an identity. It replaces the one of the same name, or else takes a free slot, or else
// replaces one that was not used.
func (c *Identities) put(e *cached) {
	c.remove(c.entries[e.name])
	if last := len(c.free) - 1; last >= 0 {
		e.slot = c.free[last]
		c.free = c.free[:last]
		c.list[e.slot] = e
	} else if len(c.list) < c.most {
		e.slot = len(c.list)
		c.list = append(c.list, e)
	} else {
		for atomic.LoadUint32(&c.list[c.hand].used) == 1 {
			atomic.StoreUint32(&c.list[c.hand].used, 0)
			c.hand = (c.hand + 1) % len(c.list)
		}
		e.slot = c.hand
		c.hand = (c.hand + 1) % len(c.list)
		c.remove(c.list[e.slot])
		c.free = c.free[:0]
		c.list[e.slot] = e
	}
	c.entries[e.name] = e
	if user := e.id.User; user != "" {
		c.users[user] = append(c.users[user], e)
	}
}

// remove removes an identity, or nothing if it is nil.
func (c *Identities) remove(e *cached) {
	if e == nil {
		return
	}
	delete(c.entries, e.name)
	if e.text != "" {
		delete(c.texts, e.text)
	}
	c.list[e.slot] = nil
	c.free = append(c.free, e.slot)
	user := e.id.User
	if user == "" {
		return
	}
	left := c.users[user]
	for i := range left {
		if left[i] == e {
			left[i] = left[len(left)-1]
			left[len(left)-1] = nil
			left = left[:len(left)-1]
			break
		}
	}
	if len(left) == 0 {
		delete(c.users, user)
	} else {
		c.users[user] = left
	}
}

func (c *Identities) evict(e eviction) {
	c.generation++
	c.evicted[c.generation%rememberedEvictions] = e
}

// EvictKey forgets an API key, also if it is remembered as unknown.
func (c *Identities) EvictKey(digest [32]byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	name := NameOfKey(digest)
	c.evict(eviction{name: name})
	c.remove(c.entries[name])
	c.unknown.remove(name)
}

// EvictUser forgets a user and the user's keys.
func (c *Identities) EvictUser(user string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.evict(eviction{name: NameOfUser(user), user: user})
	for len(c.users[user]) > 0 {
		c.remove(c.users[user][0])
	}
}

// EvictAll forgets everything.
func (c *Identities) EvictAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.evict(eviction{all: true})
	c.empty()
}

// Len is how many identities are cached, and how many unknown keys are remembered.
func (c *Identities) Len() (identities, unknown int) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	identities = len(c.entries)
	unknown = len(c.unknown.entries)
	return identities, unknown
}
