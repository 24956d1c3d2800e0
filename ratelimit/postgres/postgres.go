// Package postgres is a ratelimit.Store. All processes on one Postgres database share its
// counts. It is exact: the server decides, one statement for many hits.
//
// There are two tables of one shape, see TableSQL: an UNLOGGED one, and a logged one for
// limits that are Durable. Both are shared with the npm library pg-ratelimit, so a Node
// program and this package can share the rows of fixed_window and sliding_window limits.
package postgres

import (
	"context"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// TableSQL creates the two tables of counts, or brings those of the npm library pg-ratelimit
// up to date in place and keeps their rows. It can run any number of times. A Store runs it
// on first use, unless Options.DisableMigration is set; then it is for the operator.
const TableSQL = engine.TableSQL

// Options are the settings of a Store. The zero value is a good choice.
type Options struct {
	// DisableMigration leaves it to the operator to run TableSQL.
	DisableMigration bool
	// CleanupProbability is how likely a statement is followed, in the background, by
	// the deletion of expired rows: from 0 to 1. 0 means 0.1; below 0 turns it off.
	CleanupProbability float64
	// Workers is how many batches may be in flight at once, each on its own connection. There is one while the database
	// answers within 5 ms. 0 means 4. A DB that has a method MaxConns() int, as that of pgxdb has, gets no more than that.
	Workers int
	// DisableInMemoryBlock has the store ask the database also about keys that are known to be used up.
	DisableInMemoryBlock bool
	// LeaseHorizon is for how long the units of a lease should last, at most a twentieth of the limit's Window. Units
	// that are not used after one and a half times as long are given back. 0 means a second.
	LeaseHorizon time.Duration
	// Now replaces the server's clock, for tests.
	Now func() time.Time
	// OnError is called with failures that no caller sees: of a migration, of a
	// cleanup. It must not block. Nil drops them.
	OnError func(error)
}

// Stats counts what a Store has done since it was made.
type Stats struct {
	Requests    int64 // calls of Take and Reset that went to the database
	Batches     int64 // batches in which they went
	Statements  int64 // statements, retries included
	RolledBack  int64 // transactions undone because a request of several limits did not fit
	Blocked     int64 // requests refused without asking the database
	BlockedKeys int64 // keys that are known to be used up now
	Leased      int64 // requests that passed without asking the database, see Limit.Lease
	LeasedUnits int64 // units that are charged in advance now
	Failures    int64 // batches for which no decision came

	// Errors counts errors by class: the first two characters of an SQLSTATE, "timeout" for an
	// answer that did not come in time, "connection" for a connection that failed without an
	// SQLSTATE, and "other" for all other SQLSTATEs. It has an element for each class.
	Errors map[string]int64
}

// Store is a ratelimit.Store. All processes on one database share its counts.
type Store struct{ inner *store.Store }

// New returns a store on db, and closes db in its Close. It does not touch the network
// yet. The error is a *ratelimit.FieldError for an option that is out of its range, or a
// nil db.
func New(db pgdb.DB, o Options) (*Store, error) {
	options := engine.Options{
		DisableMigration: o.DisableMigration, CleanupProbability: o.CleanupProbability, Workers: o.Workers,
		LeaseHorizon: o.LeaseHorizon, Now: o.Now, OnError: o.OnError,
	}
	if o.DisableInMemoryBlock {
		options.MaxBlockedKeys = -1
	}
	inner, err := store.Open(db, options, nil)
	if err != nil {
		return nil, err
	}
	return &Store{inner: inner}, nil
}

// Prepare starts, in the background, what the first decision would otherwise wait for: a
// connection, and the migration if one is due.
func (s *Store) Prepare() { s.inner.Prepare() }

// Unavailable returns why no decision can be had now, or nil. The error wraps
// ratelimit.ErrUnavailable. Until a decision is asked for, the store does not notice that
// the database has stopped answering.
func (s *Store) Unavailable() error { return s.inner.Unavailable() }

// Stats returns the counts as of now.
func (s *Store) Stats() Stats {
	c := s.inner.Stats()
	return Stats{
		Requests: c.Requests, Batches: c.Batches, Statements: c.Statements, RolledBack: c.RolledBack, Blocked: c.Blocked, BlockedKeys: c.BlockedKeys,
		Leased: c.Leased, LeasedUnits: c.LeasedUnits, Failures: c.Failures, Errors: c.Errors,
	}
}

// Take implements ratelimit.Store. timeout is for the whole decision.
func (s *Store) Take(ctx context.Context, timeout time.Duration, hits []ratelimit.Hit, decisions []ratelimit.Decision) error {
	return s.inner.Take(ctx, timeout, hits, decisions)
}

// Reset implements ratelimit.Store.
func (s *Store) Reset(ctx context.Context, timeout time.Duration, hits []ratelimit.Hit) error {
	return s.inner.Reset(ctx, timeout, hits)
}

// Close implements ratelimit.Store. Calls in flight may finish, for up to a second.
// Units of leases are given back, which takes up to another second.
func (s *Store) Close() { s.inner.Close() }
