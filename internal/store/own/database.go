package own

import (
	"context"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// Batch is what a package sees of a batch that takes its calls.
type Batch interface {
	// Idle reports whether no request has hits.
	Idle() bool
	// Locked reports whether a statement has waited for a row in vain lately: another call would delay the requests.
	Locked(row lease.RowID) bool
}

// Database is what packages with calls know of the database.
type Database struct {
	DB          pgdb.DB
	Closing     context.Context // ends when the store is closed
	Unavailable func() error    // why no decision can be had, or nil
	Report      func(error)     // for failures that no caller sees; nil is none

	// Run runs statements, each attempt within the timeout. What becomes of them says whether the database answers. Run
	// reports whether a statement has failed.
	Run func(ctx context.Context, timeout time.Duration, statements []*pgdb.Statement) (bool, error)
	// Send decides a batch without requests, and Busy reports whether one is under way.
	Send func()
	Busy func() bool
}
