package ratelimit

import (
	"math"
	"strconv"
	"time"
)

// Hit is a cost that a request charges to one key of one limit.
type Hit struct {
	Limit *Limit // must be valid, and must not change while a store uses it
	Key   string // the key that is charged: any bytes; see StoredKey

	// Subject is what the key belongs to, such as a user. A database with parts has all rows of a subject in one part. All
	// programs that share the row must set it alike. "" is the key.
	Subject string

	// Cost is how much of the quota the hit takes, 1 or more. Below 0 it is given back, also if another hit is refused.
	Cost int64

	// Peek asks whether Cost, of 1 or more, would pass, and charges nothing.
	Peek bool

	// Apart decides the hit by itself: it is charged if it fits, whether or not the request's other hits are
	// allowed, and a refusal does not refuse them. It is for a limit on trial. If no decision on it is
	// possible, but one on the others is, its decision has the source Undecided.
	Apart bool

	// Secret stores the key as its DigestKey, so that the tables do not tell it. All programs that share the row do so.
	Secret bool

	// Slot is for a hit on a limit InFlight that is charged, which needs one.
	Slot *Slot
}

// Validate returns a *FieldError for a hit that cannot be decided. It does not
// validate the limit again.
func (h *Hit) Validate() error {
	if h.Limit == nil {
		return &FieldError{"hit", "", "on a limit: Hit.Limit is nil"}
	}
	if h.Cost == 0 {
		return &FieldError{"cost", "0", "1 or more, or below 0 for a refund; Peek asks without charging"}
	}
	if h.Limit.Algorithm == InFlight && !h.Peek {
		if h.Cost < 0 {
			return &FieldError{"cost", strconv.FormatInt(h.Cost, 10), "1 or more for " + h.Limit.Algorithm.String() + ": Slot.Release gives back"}
		}
		if h.Slot == nil {
			return &FieldError{"slot", "", "a Slot for each hit on a limit " + h.Limit.Algorithm.String()}
		}
	}
	if h.Cost < 0 && h.Peek {
		return &FieldError{"cost", "below 0", "1 or more for a hit that only asks (Peek)"}
	}
	return nil
}

// ValidateHits returns a *FieldError if a store cannot decide hits into decisions.
// Stores call it.
func ValidateHits(hits []Hit, decisions []Decision) error {
	if len(decisions) != len(hits) {
		return &FieldError{"decisions", "another length", "as long as hits"}
	}
	for i := range hits {
		if err := hits[i].Validate(); err != nil {
			return err
		}
	}
	return nil
}

// Decision is a store's answer to a hit.
type Decision struct {
	// Allowed is whether this limit has room for the hit. A request of several hits may pass only if each
	// hit is allowed; otherwise none of them was charged. Hits that are Apart do not count.
	Allowed bool
	// Limit is the full quota, Limit.Capacity.
	Limit int64
	// Remaining is what is left of the quota after the decision, 0 or more.
	Remaining int64
	// Reset is when more is there if no other hit comes, by the clock that decided. For a refusal, it is when a hit of
	// this cost would pass, as RetryAfter says, and zero if it cannot ever pass. Else it is the end of the current window
	// (FixedWindow, SlidingWindow), when the oldest hit leaves (SlidingLog), when the bucket is full (TokenBucket,
	// GCRA), or a guess (InFlight). If nothing is used, it is the time of the decision.
	Reset time.Time
	// RetryAfter is how long until a hit of this cost would pass if no other hit came, in whole
	// microseconds: above 0 for a refusal, 0 if the hit is allowed, Never if it cannot ever pass.
	RetryAfter time.Duration
	// DecidedAt is when an allowed hit was charged, by that clock, in microseconds.
	DecidedAt int64
	// Source is where the decision was made.
	Source Source
}

// Never is the RetryAfter of a hit that costs more than the full quota: 292 years.
const Never time.Duration = math.MaxInt64

// Source is where a decision was made.
type Source uint8

const (
	// FromPostgres is a decision of the database.
	FromPostgres Source = iota
	// FromMemory is a decision of a store in memory.
	FromMemory
	// FromBlocked is a refusal that a Postgres store knew without asking the
	// database.
	FromBlocked
	// Undecided is for a hit of a request that was refused because of another hit's
	// FromBlocked. The store did not ask about the hit and charged nothing. Only
	// Decision.Limit is set. It is also for a hit apart without a decision.
	Undecided
	// FromLease is for a hit with a cost that the process had charged in advance, see Limit.Lease.
	FromLease
)

// sources are the names, by Source.
var sources = []string{"postgres", "memory", "blocked", "undecided", "lease"}

// String returns "postgres", "memory", "blocked", "undecided" or "lease".
func (s Source) String() string {
	if int(s) < len(sources) {
		return sources[s]
	}
	return "undecided"
}
