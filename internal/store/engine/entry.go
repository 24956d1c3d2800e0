package engine

import (
	"github.com/pgratelimit/pg-ratelimit/internal/core/algorithm"
	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/core/lease"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// statementKind is what a statement does to its entries.
type statementKind uint8

const (
	take statementKind = iota
	look
	refund
	reset
	firstOwn // of ownStatements
)

// rowOf is the row of a hit. The hit has its key as it is stored.
func rowOf(h *ratelimit.Hit) lease.RowID {
	return lease.RowID{Durable: h.Limit.Durable, Prefix: h.Limit.Prefix, Key: h.Key}
}

// entry is what one statement does to one row: n hits of equal cost, a look, a refund or
// a reset.
type entry struct {
	kind  statementKind
	id    lease.RowID
	stage int
	n     int64
	cost  int64

	// Of own calls: last is how many of n are for one that comes last, and claim is that of Adjust or 0.
	last  int64
	claim int64

	first int64 // of a take on a limit InFlight: the first slot; of a statement of ownStatements: own.Call.Number

	// The refund entry before this look; later refunds of the row are added to it.
	refund *entry

	// Of the result. A failed statement leaves err, and grants nothing.
	answered bool
	granted  int64
	view     algorithm.View // the row after the entry; Limit is set before
	err      error
}

// position says what decides a hit: the hit is number nth of the equal hits of its entry. For a refund,
// entry is the look that follows it, and refund is its own entry.
type position struct {
	entry  *entry
	nth    int64
	refund *entry
}

// request is a call of a batch while it is decided. The worker owns it.
type request struct {
	call      *batch.Call
	positions []position // of each hit
	finished  bool       // the call has its decisions and is the caller's again

	// Of a request of several hits: what the simulation says, see transaction.go.
	decisions []ratelimit.Decision
	passes    bool
	refusals  []refusal
}

// refusal is a row that refused a hit.
type refusal struct {
	id   lease.RowID
	view algorithm.View
	hit  int // the index of the hit
}

// failure is the first error among what decides a request's hits.
func failure(r *request) error {
	for i := range r.positions {
		at := &r.positions[i]
		if at.entry.err != nil {
			return at.entry.err
		}
		if at.refund != nil && at.refund.err != nil {
			return at.refund.err
		}
	}
	return nil
}
