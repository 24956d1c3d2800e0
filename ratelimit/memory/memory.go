// Package memory counts rate limits in this process, without a database. Its Store has the same
// algorithms as the Store of package postgres. The counts end with the process, and no other process
// shares them.
package memory

import (
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store/memory"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Options are the settings of a Store. The zero value has good defaults.
type Options struct {
	// Capacity bounds the number of keys, of about 200 bytes each. Beyond it, a new key evicts an expired
	// key if one is found quickly, and otherwise any key. An evicted key has its full quota again. 0 means
	// 1,000,000.
	Capacity int
	// Now replaces this machine's clock, for tests.
	Now func() time.Time
}

// Store is a ratelimit.Store that counts in this process. It never waits.
type Store struct {
	methods
	inner *memory.Store
}

// methods are those of a ratelimit.Store.
type methods = ratelimit.Store

// New returns an empty Store. The error is a *ratelimit.FieldError for an option out of range.
func New(o Options) (*Store, error) {
	inner, err := memory.New(memory.Options(o))
	if err != nil {
		return nil, err
	}
	return &Store{inner, inner}, nil
}

// Len returns the number of keys in the store, including expired keys that are not yet removed.
func (s *Store) Len() int { return s.inner.Len() }
