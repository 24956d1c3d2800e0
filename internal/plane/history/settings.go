package history

import (
	"fmt"
	"os"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Settings are the settings of a Writer. The zero value has the defaults.
type Settings struct {
	// Node and Region name the process and its region in the tables, with up to 200 bytes each. A Node of ""
	// means the host name.
	Node, Region string

	// Address selects the form of addresses in the audit log. "" means option.AddressFull.
	Address option.AddressMode

	// Retention is written to rate_limit_retention by the first flush. For each part of the history that
	// Retention leaves out, the retention in the database stays.
	Retention []option.Retention

	// DisableMigration leaves the tables to the operator, who runs schema.sql. By default, the Writer creates
	// or upgrades the tables.
	DisableMigration bool

	// MaxPending bounds the number of rows of the audit log in memory. Their texts have at most MaxPending
	// KiB. Beyond either bound, the oldest rows are dropped. 0 means DefaultMaxPending.
	MaxPending int

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
	// DefaultMaxPending is the default of Settings.MaxPending.
	DefaultMaxPending = 20000

	maxName         = 200  // bytes of Node and Region
	pendingRowBytes = 1024 // bytes of text for each of MaxPending rows
	day             = 24 * time.Hour
)

// check validates the settings and sets the defaults. The error is a *ratelimit.FieldError.
func (s *Settings) check() error {
	if s.Node == "" {
		s.Node, _ = os.Hostname()
		s.Node = CleanText(s.Node, maxName)
	}
	if s.Node == "" {
		s.Node = "unknown"
	}
	err := checkName("node", s.Node)
	if err == nil {
		err = checkName("region", s.Region)
	}
	if err != nil {
		return err
	}
	if s.Address == "" {
		s.Address = option.AddressFull
	}
	if s.MaxPending < 0 {
		return &ratelimit.FieldError{Field: "max_pending", Value: fmt.Sprint(s.MaxPending), Want: "0 or more"}
	}
	if s.MaxPending == 0 {
		s.MaxPending = DefaultMaxPending
	}
	for _, r := range s.Retention {
		if r.What != "audit" && r.What != "metrics_day" {
			return &ratelimit.FieldError{Field: "retention", Value: r.What, Want: "audit or metrics_day"}
		}
		if r.Keep < day {
			return &ratelimit.FieldError{Field: "retention " + r.What, Value: r.Keep.String(),
				Want: "24h or more"}
		}
	}
	if s.Now == nil {
		s.Now = time.Now
	}
	return nil
}

func checkName(field, name string) error {
	if len(name) > maxName || CleanText(name, maxName) != name {
		return &ratelimit.FieldError{Field: field, Value: name,
			Want: fmt.Sprintf("up to %d bytes of UTF-8 without NUL", maxName)}
	}
	return nil
}
