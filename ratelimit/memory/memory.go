// Package memory counts rate limits in this process: the same algorithms as package
// postgres, without a database. The counts end with the process and no other process
// sees them.
package memory

import (
	"context"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store/memory"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Options are the settings of a Store. The zero value is a good choice.
type Options struct {
	// Capacity bounds the keys. Beyond it a new key displaces another one: an expired key if one
	// is found quickly, else any key. A displaced key has its full quota again. 0 means
	// 1,000,000, at about 200 bytes for each.
	Capacity int
	// Now replaces this machine's clock, for tests.
	Now func() time.Time
}

// Store is a ratelimit.Store in this process.
type Store struct{ inner *memory.Store }

// New returns an empty store. The error is a *ratelimit.FieldError for an option that is
// out of its range.
func New(o Options) (*Store, error) {
	inner, err := memory.New(memory.Options(o))
	if err != nil {
		return nil, err
	}
	return &Store{inner: inner}, nil
}

// Take implements ratelimit.Store. It never waits.
func (s *Store) Take(ctx context.Context, timeout time.Duration, hits []ratelimit.Hit, decisions []ratelimit.Decision) error {
	return s.inner.Take(ctx, timeout, hits, decisions)
}

// Reset implements ratelimit.Store.
func (s *Store) Reset(ctx context.Context, timeout time.Duration, hits []ratelimit.Hit) error {
	return s.inner.Reset(ctx, timeout, hits)
}

// Close implements ratelimit.Store.
func (s *Store) Close() { s.inner.Close() }

// Len is how many keys the store holds, including expired keys that are not yet removed.
func (s *Store) Len() int { return s.inner.Len() }
