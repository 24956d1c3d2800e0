// Package hooks is what a Postgres store offers to the packages of this repository, and not to Go
// programs. Package postgres sets these variables when it is initialised, and nothing changes them
// after that. Another kind of store has no batches and no registry: for it, the functions do nothing.
package hooks

import (
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Histogram counts values by size.
type Histogram struct {
	// Counts[i] counts the values that are above 1<<(i-1) and at most 1<<i. Counts[0] counts those
	// that are at most 1, and the last element also those that are larger.
	Counts []int64

	// Sum is the sum of the values.
	Sum int64
}

// Batches are the histograms of the batches of a store, and what is under way.
type Batches struct {
	Waiting  int64 // requests that wait for a decision of the database
	Leases   int64 // keys of which units are charged in advance
	InFlight int64 // slots that requests of this process hold

	Sizes Histogram // requests in a batch
	Waits Histogram // microseconds from the arrival of a batch's first request to the batch's start
	Times Histogram // microseconds from a batch's start to its end
}

// BatchesOf returns what a store has counted since it was made.
var BatchesOf func(store ratelimit.Store) Batches

// Settlement is what is known of a request's cost afterwards.
type Settlement struct {
	Limit     *ratelimit.Limit
	Key       string // as it is stored
	Subject   string // of the hit
	Back      int64  // what is to be given back of the charge, or charged in addition if it is below 0
	DecidedAt int64  // of the decision on the charge
	Reset     int64  // likewise, in microseconds
	Source    ratelimit.Source
}

// Settle changes a counter of a Postgres store soon, and does not wait for that.
var Settle func(store ratelimit.Store, s *Settlement)

// SettleInMemory changes a counter of a store in memory. Package memory sets it.
var SettleInMemory func(store ratelimit.Store, s *Settlement)

// SettledOf returns how many settlements a store has made since it was made itself, and of how many it is not known
// whether they had their effect.
var SettledOf func(store ratelimit.Store) (settled, lost int64)

// SetApplied says for the registry of proxies which change of the policy the process obeys, in which
// log of changes (the oid of rate_limit_changes; a restore makes another one), and which rules it cannot
// use. It does nothing without postgres.Options.Node.
var SetApplied func(store ratelimit.Store, seq int64, log string, problems []string)

// UseLocal makes a store remember the rows of its decisions, for TakeLocal.
var UseLocal func(store ratelimit.Store)

// TakeLocal is Take without the database, at this process's share of each limit: with 0, the share is one
// of the proxies that the registry showed last. cause is why the database has made no decision. It
// reports false if the hits cannot be decided.
var TakeLocal func(store ratelimit.Store, cause error, share float64, hits []ratelimit.Hit, decisions []ratelimit.Decision) bool

// LocalSince is since when TakeLocal decides because the database does not; the zero time if the database decides.
var LocalSince func(store ratelimit.Store) time.Time

// SetLive has a store call live about once a second while a page is open that shows what proxies do, and once
// with false when no page is open any more. live returns a text of JSON for the registry. SetLive does nothing
// without postgres.Options.Node.
var SetLive func(store ratelimit.Store, live func(watched bool) string)
