// Package postgres counts rate limits exactly in a Postgres database. All processes on the
// database share the counts of its Store. The server decides, with one statement for many hits.
//
// TableSQL creates two tables with the same columns: an UNLOGGED one, and a logged one for Durable
// limits. The npm library pg-ratelimit uses them too, so a Node program and this package can share
// the rows of FixedWindow and SlidingWindow limits.
package postgres

import (
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/store"
	"github.com/pgratelimit/pg-ratelimit/internal/store/engine"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// TableSQL creates all tables, or upgrades older ones and those of the npm library pg-ratelimit in place, and
// keeps their rows. It can run any number of times. A Store runs it on first use if there are no tables,
// unless Options.DisableMigration is set.
const TableSQL = engine.TableSQL

// Options are the settings of a Store. The zero value has good defaults.
type Options struct {
	// DisableMigration keeps the Store from running TableSQL: the operator runs it.
	DisableMigration bool
	// CleanupProbability is the probability, up to 1, that a statement starts the deletion of expired rows
	// in the background. 0 means 0.1; a negative value turns cleanup off.
	CleanupProbability float64
	// Workers bounds the number of concurrent batches, each on its own connection. 0 means 4. While the
	// database answers within 5 ms, only one worker runs. If db has a method MaxConns() int, like a pgxdb.DB,
	// the result is another bound.
	Workers int
	// DisableRememberedRefusals sends every hit to the database. By default the store remembers keys with no
	// quota left, and refuses their hits from memory.
	DisableRememberedRefusals bool
	// LeaseHorizon is the time that the units of a lease should last, at most a twentieth of the limit's
	// Window. Units that are not used within one and a half horizons are released. 0 means a second.
	LeaseHorizon time.Duration
	// Now replaces the server's clock, for tests.
	Now func() time.Time
	// OnError, if not nil, is called with errors that no call returns, such as a failed migration or cleanup.
	// It must not block.
	OnError func(error)
}

// Stats holds counts since New, and current sizes.
type Stats struct {
	Requests           int64 // calls of Take and Reset that went to the database
	Batches            int64 // batches of those calls
	Statements         int64 // statements, retries included
	RolledBack         int64 // transactions rolled back because a request with several limits did not fit
	RefusedFromMemory  int64 // requests refused from memory
	RememberedRefusals int64 // refusals that are remembered now
	Leased             int64 // requests that passed on the units of a lease; see Limit.Lease
	LeasedUnits        int64 // units charged in advance for leases, now
	Failures           int64 // batches without a decision

	// Errors counts errors by class: the first two characters of an SQLSTATE, "timeout" for a late answer,
	// "connection" for a connection that failed without an SQLSTATE, and "other" for all other SQLSTATEs.
	// It has an element for each class, even if its count is 0.
	Errors map[string]int64
}

// Store is a ratelimit.Store that shares its counts with all processes on one database. Close waits up to a
// second for calls in flight, then up to a second for the refund of leases.
type Store struct {
	methods
	inner *store.Store
}

// methods are those of a ratelimit.Store.
type methods = ratelimit.Store

// New returns a Store on db, without using the network. The Store owns db: Close closes it. The
// error is a *ratelimit.FieldError for a nil db or an option out of range.
func New(db pgdb.DB, o Options) (*Store, error) {
	options := engine.Options{
		DisableMigration: o.DisableMigration, CleanupProbability: o.CleanupProbability, Workers: o.Workers,
		DisableRememberedRefusals: o.DisableRememberedRefusals,
		LeaseHorizon:              o.LeaseHorizon, Now: o.Now, OnError: o.OnError,
	}
	inner, err := store.Open(db, options, nil)
	if err != nil {
		return nil, err
	}
	return &Store{inner, inner}, nil
}

// Prepare opens a connection and runs a migration if one is due, in the background. Without Prepare,
// the first decision waits for this work.
func (s *Store) Prepare() { s.inner.Prepare() }

// Unavailable returns nil, or during an outage its reason as an error that wraps
// ratelimit.ErrUnavailable. Only calls of Take and Reset detect an outage.
func (s *Store) Unavailable() error { return s.inner.Unavailable() }

// Stats returns a snapshot of the counts.
func (s *Store) Stats() Stats {
	c := s.inner.Stats()
	return Stats{
		Requests: c[engine.Requests], Batches: c[engine.Batches], Statements: c[engine.Statements],
		RolledBack: c[engine.RolledBack], RefusedFromMemory: c[engine.RefusedFromMemory],
		RememberedRefusals: c[engine.RememberedRefusals],
		Leased:             c[engine.Leased], LeasedUnits: c[engine.LeasedUnits],
		Failures: c[engine.Failures],
		Errors:   c.ErrorsByClass(),
	}
}
