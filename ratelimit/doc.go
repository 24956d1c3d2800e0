// Package ratelimit is the contract of rate limits and quotas that are counted
// exactly: what a Limit is, what a Hit costs, what a Decision contains, and what a
// Store must do. Package postgres counts in a Postgres database for all processes that
// share it, package memory in one process.
//
// # A decision
//
// A Limit says what is enforced: Events in a Window, counted by an Algorithm for
// each key under a Prefix. A Store decides hits:
//
//	db, err := pgxdb.Open(os.Getenv("DATABASE_URL"), pgxdb.Options{})
//	store, err := postgres.New(db, postgres.Options{})
//	defer store.Close()
//	limiter, err := ratelimit.NewLimiter(store, ratelimit.Limit{
//		Prefix: "api", Events: 100, Window: time.Minute,
//	})
//	d, err := limiter.Take(ctx, "user:123", 1)
//	if err == nil && !d.Allowed {
//		// refuse; it would pass after d.RetryAfter
//	}
//
// For every algorithm: a refusal changes no counter. A cost above the full quota
// (Limit.Capacity) can never pass: it is refused with RetryAfter Never. A negative
// cost is a refund, which never raises a quota above its full amount. Remaining is
// never below 0. RetryAfter is exact: the earliest moment at which this cost would
// pass if no other hit came, to the microsecond. Reset is that moment for a refusal, and else
// the end of the window: see Decision.Reset. Limiter.Peek, or Hit.Peek, asks without charging.
//
// Several limits on one request (Store.Take with several hits) are charged all
// together or not at all, in one transaction.
//
// # Time
//
// The database server's clock decides, read once in each statement, to the microsecond. The time of a
// row never runs backwards. A memory store uses this machine's clock.
//
// # Failure
//
// If the database does not decide within the timeout, the result is an error. The caller then lets the
// request pass, or refuses it. It is unknown whether such a hit was charged. While the database does
// not answer, calls fail at once with ErrUnavailable. ErrOverloaded is no outage: the caller refuses the request.
//
// # Changing a limit
//
// A row holds what was counted, not the limit, so a changed limit applies at once. FixedWindow and
// SlidingWindow share their counters, and so do TokenBucket and GCRA. A switch
// to any other algorithm starts with a full quota, once. docs/algorithms.md has the details.
//
// # Keys
//
// Keys are data: they are parameters of statements, never part of SQL text. They appear in no error.
// Hit.StoredKey is the text that the tables have for a key.
package ratelimit
