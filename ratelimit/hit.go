package ratelimit

import (
	"math"
	"strconv"
	"time"
)

// Hit charges a cost to one key of one limit.
type Hit struct {
	Limit *Limit // must be valid, and must not change while a store uses it
	Key   string // the key to charge: any bytes; see StoredKey

	// Subject is the owner of the key, such as a user. On Citus, all rows of a subject are on one shard.
	// All programs that share the row must set it alike. "" means Key.
	Subject string

	// Cost is the number of units to charge. 0 is invalid. A negative Cost refunds units, even if another
	// hit of the request is refused.
	Cost int64

	// Peek tests whether Cost, 1 or more, would pass. It charges nothing.
	Peek bool

	// Independent decides the hit independently of the request's other hits: the hit is charged if it fits,
	// and the other hits may pass if it is refused. Use it for a limit on trial. If the store can decide the
	// other hits but not this hit, the Decision of this hit has the Source Undecided.
	Independent bool

	// Secret stores DigestKey(Key) in the tables instead of Key. All programs that share the row must set
	// it alike.
	Secret bool

	// Hold holds the units that a hit acquires on a limit that is InFlight or Reserves. Such a hit requires
	// one unless it is a peek or a refund. Other hits ignore it.
	Hold *Hold
}

// ValidateHits returns a *FieldError if a hit is invalid or the lengths differ. It does not validate the
// limits. Every Store calls it first.
func ValidateHits(hits []Hit, decisions []Decision) error {
	if len(decisions) != len(hits) {
		return &FieldError{"decisions", "another length", "as long as hits"}
	}
	for i := range hits {
		h := &hits[i]
		if h.Limit == nil {
			return &FieldError{"hit", "", "on a limit: Hit.Limit is nil"}
		}
		if h.Cost == 0 {
			return &FieldError{"cost", "0",
				"1 or more, or below 0 for a refund; Peek asks without charging"}
		}
		if h.Limit.Algorithm == InFlight && !h.Peek {
			if h.Cost < 0 {
				return &FieldError{"cost", strconv.FormatInt(h.Cost, 10),
					"1 or more for in_flight: Hold.Release releases the units"}
			}
			if h.Hold == nil {
				return &FieldError{"hold", "", "a Hold for each hit on a limit in_flight"}
			}
		}
		if h.Limit.Reserves && !h.Peek && h.Cost > 0 && h.Hold == nil {
			return &FieldError{"hold", "", "a Hold for each hit on a limit that reserves"}
		}
		if h.Cost < 0 && h.Peek {
			return &FieldError{"cost", "below 0", "1 or more for a hit that only asks (Peek)"}
		}
	}
	return nil
}

// Decision is a store's result for a hit.
type Decision struct {
	// Allowed reports whether the limit has room for the hit. A request with several hits may pass only if
	// all of them are allowed, except those that are Independent. If one of them is refused, none of them is
	// charged. Refunds and hits that are Independent take effect independently.
	Allowed bool
	// Quota is the full quota, Limit.Capacity.
	Quota int64
	// Remaining is the quota left after the decision, 0 or more.
	Remaining int64
	// Reset is the time at which more quota becomes available if no other hit comes, by the clock that
	// decided. For a refusal it is the moment at which the hit would pass, or zero if it never can. For an
	// allowed hit it is the end of the current window (FixedWindow, SlidingWindow), the moment the oldest
	// hit expires (SlidingLog), the moment the bucket is full (TokenBucket, GCRA), or an estimate
	// (InFlight). If the whole quota is left, it is the time of the decision.
	Reset time.Time
	// RetryAfter is the time until the hit would pass if no other hit came, in whole microseconds: above 0
	// for a refusal, 0 for an allowed hit, Never if the hit can never pass.
	RetryAfter time.Duration
	// DecidedAt is the time at which an allowed hit was charged, by the clock that decided, in microseconds
	// since 1970.
	DecidedAt int64
	// Source is the place where the decision was made.
	Source Source
}

// Never is the RetryAfter of a hit that costs more than the full quota: 292 years.
const Never time.Duration = math.MaxInt64

// Source is the place where a decision was made.
type Source uint8

const (
	// FromPostgres marks a decision of the database.
	FromPostgres Source = iota
	// FromMemory marks a decision of a store in memory.
	FromMemory
	// FromRemembered marks a refusal from memory: a Postgres store remembered that the quota was used up.
	FromRemembered
	// Undecided marks a hit that the store did not decide and did not charge: another hit of the request was
	// refused from memory, or the hit is Independent and could not be decided. Only Quota, Source and Allowed
	// are set. Allowed is true, because this hit refuses nothing.
	Undecided
	// FromLease marks a hit decided from units that the process had charged in advance; see Limit.Lease.
	FromLease
)

// sources holds the name of each Source.
var sources = []string{"postgres", "memory", "remembered", "undecided", "lease"}

// String returns "postgres", "memory", "remembered", "undecided" or "lease".
func (s Source) String() string {
	if int(s) < len(sources) {
		return sources[s]
	}
	return "undecided"
}
