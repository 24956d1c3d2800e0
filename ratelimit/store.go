package ratelimit

import (
	"context"
	"time"
)

// Store decides hits. A store of package postgres shares its counts with every
// process on the database; a store of package memory counts in this process.
//
// A Store is safe for concurrent use.
type Store interface {
	// Take decides the hits of one request, and writes a decision for each hit into decisions,
	// which must be as long as hits. The hits are charged all together or not at all, except for
	// hits that are Apart. Two hits of one request must not share a row (Limit.Prefix, Key,
	// Limit.Durable).
	//
	// timeout is how long the database has for a statement. The call waits longer while
	// the database answers others, for up to four timeouts.
	//
	// A *FieldError means that a hit is wrong, and that nothing was charged. Any
	// other error means that no decision was made in time, or before ctx
	// ended: it is then unknown whether the hits were charged. With ErrOverloaded the
	// database answers, and the request should be refused.
	Take(ctx context.Context, timeout time.Duration, hits []Hit, decisions []Decision) error

	// Reset gives the keys of the hits their full quotas back. Only Limit, Key and
	// Secret of a hit count.
	Reset(ctx context.Context, timeout time.Duration, hits []Hit) error

	// Close releases what the store holds. Later calls return ErrClosed.
	Close()
}
