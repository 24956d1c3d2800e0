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
// pass if no other hit came, to the microsecond. At Reset the full quota is back if
// no other hit comes. Limiter.Peek, or Hit.Peek, asks without charging.
//
// Several limits on one request (Store.Take with several hits) are charged all
// together or not at all, in one transaction. A refused request holds no quota, not
// even for a moment.
//
// # Time
//
// The database server's clock decides, read once in each statement, so the clocks
// of the processes do not matter. A row's time never runs backwards: if the clock
// is set back, the later of the clock and the time in the row counts. A memory store
// uses this machine's clock. Times are exact to the microsecond.
//
// # Failure
//
// If there is no decision within the timeout, the result is an error. The caller
// then lets the request pass, or refuses it. It is unknown whether such a hit was
// charged. While the database does not answer, calls fail
// at once with ErrUnavailable instead of waiting for their timeouts.
//
// Counts of limits that are not Durable are in an UNLOGGED table: a crash of the
// server deletes them, and every quota is full again. Counts of Durable limits
// survive a crash, except for the last fraction of a second unless SynchronousCommit
// is set.
//
// # Changing a limit
//
// A row holds what was counted, not the limit. So a changed limit applies at once: a
// lower limit refuses until enough has expired, and a higher limit admits the
// difference. A changed window is measured from the row's window_start. fixed_window, with or
// without a calendar, and sliding_window share their counters, so a switch between
// them continues the count. token_bucket and gcra convert each other's rows and give
// away no more than the Events of one Window. A switch to any other algorithm starts
// with a full quota, once: each algorithm keeps its own columns, so processes that
// disagree for a while (as in a rolling deployment) count apart, and their counts
// add up. If two limits share a counter but have different windows, the shorter
// window ends first, and the count starts again for both. The limit that wrote a row
// last decides when the row expires.
//
// # Keys
//
// Keys are data: they are parameters of statements, never part of SQL text. A key of
// more than 512 bytes, or one that Postgres's text type cannot hold (a NUL byte,
// invalid UTF-8), is stored as its SHA-256 digest. Hit.Secret stores any key that
// way, which keeps credentials out of the tables. Keys appear in no error.
package ratelimit
