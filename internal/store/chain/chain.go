// Package chain has what the stores of a chain know of each other, see package store.
package chain

import (
	"context"
	"errors"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Store is a store of a chain. Each one but the last holds the next one, and passes on to it what is not its own.
type Store interface {
	ratelimit.Store

	// OpenQueue returns a queue for calls that a proxy sends itself, with its own Deliver, see batch.Options. The queue
	// lasts as long as the store.
	OpenQueue(timeout time.Duration, deliver func(calls []*batch.Call)) *batch.Queue
	// Leases are the leases of the store; nil if it has none.
	Leases() *lease.Set
	// Settle changes a counter soon, and does not wait for that.
	Settle(s *batch.Settlement)
	// Answers reports whether the database answers for a subject, as far as that is known.
	Answers(subject string) bool
	// Charge charges units of a row soon, which were admitted on a durable limit without the database: once, as far
	// as the quota goes, and also if there is no row. Rows.Charged learns what becomes of them.
	Charge(subject string, row lease.RowID, l *ratelimit.Limit, units int64)
	// Held is how many slots of a row the requests of this process hold.
	Held(row lease.RowID) int64

	// Prepare starts, in the background, what the first decision would otherwise wait for: a connection, and the
	// migration if one is due.
	Prepare()
	// Await waits until the tables of counts are as they must be, which Ready reports.
	Await(ctx context.Context) error
	Ready() bool
	// Unavailable returns why no decision can be had now, or nil. The error wraps ratelimit.ErrUnavailable. Until a
	// decision is asked for, the store does not notice that the database has stopped answering.
	Unavailable() error
	// Stats returns the counts as of now.
	Stats() Stats

	// Tick has the store look, in the background, whether its server was restored or replaced. It is called about once a
	// second.
	Tick()
}

// Bounded is a DB that knows how many connections it has at most.
type Bounded interface{ MaxConns() int }

// Place is where the tables of counts of a store are. The zero value is the database of the store.
type Place struct {
	// Find is asked before the tables are looked for, until it has answered. It reports that the tables are in other
	// stores: then this store makes none, and decides nothing. down is whether the connection has failed. Nil is never.
	Find func(ctx context.Context) (elsewhere, down bool, err error)
	// Tables are other tables than those of the database, by the names of those; nil is none. The store makes none
	// then.
	Tables map[string]Table
	// Divert is given the batches of queues of OpenQueue first. It reports that it ends their calls. Nil ends none.
	Divert func(q *batch.Queue, calls []*batch.Call) bool
	// Of is among how many stores the keys are divided; 0 is 1.
	Of int
}

// Table is a table of a Place.
type Table struct {
	Name string // as in SQL
	// Guard is a call that each statement makes, with a comma before it. It fails if the table is not here any more.
	Guard string
}

// Row is a row as a decision of the database has left it. View is the store's again after the call that had it.
type Row struct {
	ID   lease.RowID
	View *algorithm.View
}

// Rows learns the rows of decisions.
type Rows interface {
	// Wanted reports whether Learn is to be called.
	Wanted() bool
	Learn(rows []Row)
	// Charged says of how many units of Charge it is known what became of them, how many of these were charged, and
	// whether the others may have been.
	Charged(units, charged int64, lost bool)
}

// ErrSent is in the error of a batch that the database may have decided before the connection failed.
var ErrSent = errors.New("while a batch was under way")

// Local is what a process has decided by itself since the database made no decisions.
type Local struct {
	On                bool      // it still makes none
	Since, Last       time.Time // of the first and of the last decision
	Parts             float64   // the last share of each limit was one of so many
	Admitted, Refused int64     // requests

	// Units that were admitted on durable limits: those that were charged, that were beyond the quotas, and that may
	// not have been charged.
	Charged, Unfit, Lost int64
}
