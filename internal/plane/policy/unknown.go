package policy

import "time"

// unknownKeys remembers keys that the database does not know, for a short time. It holds a
// fixed number; if it is full, the oldest goes. Its owner locks it.
type unknownKeys struct {
	lasts   int64 // microseconds
	entries map[string]*unknownKey
	list    []*unknownKey // in a circle, the oldest at next
	next    int
	most    int
}

type unknownKey struct {
	name string
	id   *Identity
	at   int64 // when the database was asked
}

func newUnknownKeys(most int, lasts time.Duration) unknownKeys {
	return unknownKeys{lasts: lasts.Microseconds(), entries: make(map[string]*unknownKey), most: most}
}

// find returns the identity of an unknown key and when it was looked up; or nil.
func (u *unknownKeys) find(name string, now int64) (*Identity, int64) {
	e := u.entries[name]
	if e == nil || now >= e.at+u.lasts {
		return nil, 0
	}
	return e.id, e.at
}

func (u *unknownKeys) add(name string, id *Identity, at int64) {
	e := &unknownKey{name: name, id: id, at: at}
	if len(u.list) < u.most {
		u.list = append(u.list, e)
	} else {
		// Unless the oldest was removed, or a newer entry has its name.
		if old := u.list[u.next]; u.entries[old.name] == old {
			delete(u.entries, old.name)
		}
		u.list[u.next] = e
		u.next = (u.next + 1) % u.most
	}
	u.entries[name] = e
}

func (u *unknownKeys) remove(name string) { delete(u.entries, name) }
