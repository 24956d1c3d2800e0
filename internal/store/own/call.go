// Package own has a store's own calls. They travel with the batches of requests, and nobody waits for them:
// settlements, slots that are released, refunds of leases. A package that makes calls has a Kind for them, and the
// engine of the store plans, sends and ends them by their kind.
//
//   - call.go: a call and its kind. waiting.go: calls that wait for a batch.
//   - database.go: what a package with calls sees of a batch, and of the database.
package own

import (
	"fmt"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Call is what a store itself does to a row. The package of its kind owns the call until it waits for a batch, and from
// its end on. In between it is the batch's.
type Call struct {
	Kind   *Kind
	Row    lease.RowID
	Limit  *ratelimit.Limit // of Charge and Adjust
	N      int64            // how many units: below 0, Adjust charges them
	Claim  int64            // of Adjust: see algorithm.Definition.Adjust
	Number int64            // what the kind makes of it
	Of     any              // what the package of the kind knows of the call

	// Since is when the call failed by itself first, or waited for a locked row first: then it has a statement of
	// its own. It is zero if neither has happened.
	Since time.Time

	// The result. Granted is how many units Charge has charged, and View the row after the statement, while the call
	// ends.
	Err     error
	Granted int64
	View    *algorithm.View

	waits bool // the call is in a Waiting; the mutex of that Waiting guards waits
}

// Retry says that the call has failed by itself, so that it has a statement of its own from now on.
func (c *Call) Retry() {
	if c.Since.IsZero() {
		c.Since = time.Now()
	}
}

// Kind is a kind of calls. How they end is in the table of the engine. Types that refer back to Call cannot be here,
// since Yaegi would take one type for two.
type Kind struct {
	Statement *Statement // what is done to the row

	// Once is whether a batch has only one call of a row.
	Once bool
}

// Statement is what a kind does to rows. Charge and Adjust share the statements of requests.
type Statement struct {
	// SQL is the text of a statement of the kind's own, after the clock, with {table}. $2 to $5 are arrays with an
	// element for each call: the prefix and the key of Row, N, and Number. A row can have several calls.
	SQL  string
	Disk bool // on a durable table, the commit waits for the disk
}

var (
	// Charge takes N hits of cost 1, or as many of them as fit.
	Charge = &Statement{}
	// Adjust gives N back, or charges it if it is below 0, see algorithm.Definition.Adjust.
	Adjust = &Statement{}
)

// ErrLocked is the error of a call or a hit on a row that another transaction has locked.
var ErrLocked = fmt.Errorf("%w: a transaction that has not ended has locked the row of a key: it is open, or its commit waits for a synchronous standby", ratelimit.ErrTimeout)
