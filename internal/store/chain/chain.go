// Package chain has what the stores of a chain know of each other, see package store.
package chain

import "time"

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
