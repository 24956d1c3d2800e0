package ratelimit

import (
	"errors"
	"time"
)

// Hit is one request's claim on one limit.
type Hit struct {
	Limit *Limit // must be valid, and not change while in use
	Key   string // whose quota, any bytes; see StoredKey
	Cost  int64  // how much of it: 0 asks only what is left, below 0 gives back

	// Peek only asks whether the cost would pass, and charges nothing.
	Peek bool

	// Secret stores the key as its DigestKey, so that it cannot be read from
	// the tables. All who share the row must do the same.
	Secret bool
}

// storedKey is the key's text in the tables.
func (h *Hit) storedKey() string {
	if h.Secret {
		return DigestKey(h.Key)
	}
	return StoredKey(h.Key)
}

// Decision is what a store says to a hit.
type Decision struct {
	// Allowed is whether this limit has room for the hit. A request of several
	// hits may pass only if each is allowed; otherwise none was charged.
	Allowed bool

	// Limit is the full quota, Limit.Capacity.
	Limit int64

	// Remaining is what is left of it after the decision, 0 or more.
	Remaining int64

	// Reset is when the full quota will be back if nobody comes, by the clock
	// that decided (the database server's).
	Reset time.Time

	// RetryAfter is how long until a hit of this cost would pass if nobody
	// else came, in whole microseconds; 0 if it passed. Never if it cannot.
	RetryAfter time.Duration

	// Source is where the decision was made.
	Source Source
}

// Source is where a decision was made.
type Source uint8

const (
	// FromPostgres is a decision of the database.
	FromPostgres Source = iota
	// FromMemory is a decision of a Memory store.
	FromMemory
	// FromBlocked is a refusal that a Postgres store knew without asking.
	FromBlocked
	// Undecided is for a hit of a request that another hit's FromBlocked
	// refused: it was neither asked about nor charged. Only Limit is set.
	Undecided
)

// String returns "postgres", "memory", "blocked" or "undecided".
func (s Source) String() string {
	switch s {
	case FromPostgres:
		return "postgres"
	case FromMemory:
		return "memory"
	case FromBlocked:
		return "blocked"
	}
	return "undecided"
}

// Never is the RetryAfter of a hit that costs more than the full quota.
const Never time.Duration = -1

var (
	// ErrClosed is returned by a store that was closed.
	ErrClosed = errors.New("ratelimit: the store is closed")
	// ErrTimeout is returned where no decision came in time.
	ErrTimeout = errors.New("ratelimit: no decision within the timeout")
	// ErrUnavailable is returned at once while the database is known not to
	// answer; it is tried again within a second.
	ErrUnavailable = errors.New("ratelimit: the database does not answer")
)

// admitted is the decision on a hit that was granted, from what the row says
// after it; behind is how much of the row's charge came after this hit, in the
// same statement.
func admitted(l *Limit, r *row, now, behind int64) Decision {
	free, reset := algorithms[stepsOf(l)].look(l, r, now)
	free += behind
	if free < 0 || free > capacity(l) {
		free = larger(0, smaller(free, capacity(l)))
	}
	return Decision{Allowed: true, Limit: capacity(l), Remaining: free, Reset: time.UnixMicro(reset)}
}

// refused is the decision on a hit that was not; behind is what will be given
// back of what the row says.
func refused(l *Limit, r *row, now, cost, behind int64) Decision {
	d := admitted(l, r, now, behind)
	d.Allowed = false
	d.RetryAfter = Never
	if cost <= d.Limit {
		d.RetryAfter = retryAfter(algorithms[stepsOf(l)].retry(l, r, now, cost) - now)
	}
	return d
}

// fits reports whether a cost would pass.
func fits(l *Limit, r *row, now, cost int64) bool {
	free, _ := algorithms[stepsOf(l)].look(l, r, now)
	return free >= cost
}

// retryAfter converts a wait in microseconds, at least one, at most what a
// Duration holds.
func retryAfter(wait int64) time.Duration {
	if wait < 1 {
		wait = 1
	}
	if wait > int64(1<<63-1)/1000 {
		return 1<<63 - 1
	}
	return time.Duration(wait) * time.Microsecond
}
