// Package ratelimit defines rate limits and quotas that are counted exactly.
//
// A Limit sets how much may pass in which time. A Hit charges a cost to one key of a Limit. A Store
// decides hits and returns a Decision for each. The Store of package postgres shares its counts with
// all processes on a Postgres database; the Store of package memory counts in this process. Most
// programs use a Limiter, which applies one Limit to the keys of a Store.
//
// # A decision
//
// A Limit allows Events in a Window, counted by an Algorithm for each key under a Prefix:
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
// These invariants hold for every algorithm:
//   - A refusal and a peek change no counter.
//   - A cost above the full quota (Limit.Capacity) never passes: its RetryAfter is Never.
//   - A negative cost is a refund. A refund never raises a quota above its full amount.
//   - Remaining is never below 0. RetryAfter is exact if no other hit comes.
//   - Several hits of one request (Store.Take) are charged all together or not at all.
//
// The step of each algorithm, in Go and in SQL, is in a file of internal/core/algorithm.
// docs/algorithms.md shows a whole statement.
//
// # Time
//
// The clock of the database server decides. Each statement reads it once, to the microsecond. The
// time of a row never runs backwards. A store in memory uses the clock of its machine.
//
// # Failure
//
// If the database does not decide within the timeout, the result is an error, and the hits may or
// may not have been charged. The caller lets the request pass or refuses it. During an outage, calls
// fail immediately with ErrUnavailable. ErrOverloaded means too many requests, not an outage:
// refuse the request.
//
// # Changing a limit
//
// A row holds counts, not the limit, so a changed limit applies immediately. FixedWindow
// and SlidingWindow share their counters, and so do TokenBucket and GCRA. A switch to any other
// algorithm starts with a full quota. docs/algorithms.md has the details.
//
// # Keys
//
// Keys are parameters of statements, never part of SQL text, and appear in no error. Hit.StoredKey
// returns the text that the tables hold for a key.
package ratelimit
