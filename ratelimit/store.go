package ratelimit

import (
	"context"
	"time"
)

// Store decides hits. A Store of package postgres shares its counts with every process on the
// database; one of package memory counts in this process.
//
// Implementations are safe for concurrent use.
type Store interface {
	// Take decides the hits of one request and stores the decision on hits[i] in decisions[i]. Both slices
	// must have the same length. The hits are charged all together or not at all, except for those that are
	// Independent. No two hits may share a row (the same Limit.Prefix or CountedAs, Key and Limit.Durable).
	//
	// timeout, above 0, bounds the time that the database takes for a statement. While the database answers
	// other calls, Take waits for up to four timeouts.
	//
	// A *FieldError means that a hit is invalid and nothing was charged. Any other error means that no
	// decision came in time, or before ctx ended; the hits may or may not have been charged. On
	// ErrOverloaded the database is answering, and the caller should refuse the request.
	Take(ctx context.Context, timeout time.Duration, hits []Hit, decisions []Decision) error

	// Reset restores the full quota of each hit's key. It uses only Limit, Key, Subject and Secret.
	Reset(ctx context.Context, timeout time.Duration, hits []Hit) error

	// Close releases the store's resources. Later calls of Take and Reset return ErrClosed.
	Close()
}
