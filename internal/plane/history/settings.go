package history

import (
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
)

// Settings are the settings of a Writer. The caller has validated them.
type Settings struct {
	// Node and Region name the process and its region in the tables.
	Node, Region string

	// Address selects the form of addresses in the audit log. "" means option.AddressFull.
	Address option.AddressMode

	// Retention is written to rate_limit_retention by the first flush. For each part of the history that
	// Retention leaves out, the retention in the database stays.
	Retention []option.Retention

	// DisableMigration leaves the tables to the operator, who runs schema.sql. By default, the Writer creates
	// or upgrades the tables.
	DisableMigration bool

	// Now replaces this machine's clock, for tests.
	Now func() time.Time

	// OnError, if not nil, receives these errors, and must not block:
	//
	//   - a parcel that could not be written, and requests that were dropped or counted under (other):
	//     at most one error a minute
	//   - a retention that the role may not shorten
	//   - a failure of the upkeep, unless the previous upkeep failed in the same way
	OnError func(error)
}

const (
	// MaxPending bounds the number of rows of the audit log in memory. Their texts have at most MaxPending
	// KiB. Beyond either bound, the oldest rows are dropped.
	MaxPending = 20000

	pendingRowBytes = 1024 // bytes of text for each of MaxPending rows
	day             = 24 * time.Hour
)
