// Package ratelimit decides rate limits and quotas exactly, on Postgres, for all
// processes that share a database, or in the memory of one.
//
// # A decision
//
// A Limit says what is enforced: Events in a Window, counted by an Algorithm for
// each key under a Prefix. A Store decides hits:
//
//	db, err := pgxdb.Open(os.Getenv("DATABASE_URL"), pgxdb.Options{})
//	store := ratelimit.NewPostgres(db, ratelimit.PostgresOptions{})
//	defer store.Close()
//	limiter, err := ratelimit.NewLimiter(store, ratelimit.Limit{
//		Prefix: "api", Events: 100, Window: time.Minute,
//	}, 0)
//	d, err := limiter.Take(ctx, "user:123", 1)
//	if err == nil && !d.Allowed {
//		// refuse; it would pass after d.RetryAfter
//	}
//
// For every algorithm: a refusal changes no counter. A cost above the full quota
// (Limit.Capacity) can never pass: it is refused with RetryAfter Never. A cost of
// 0 asks what is left. A negative cost gives back, never beyond the full quota.
// Remaining is never below 0. RetryAfter is exact: the earliest moment at which
// this cost would pass if nobody else came, not a microsecond later. At Reset the
// full quota is back if nobody came.
//
// Several limits on one request (Store.Take with several hits) are charged all
// together or not at all. They are decided at once; where one refuses, what the
// others granted is given back in the next round trip. So they never admit too
// much, and may for that moment admit too little: a request of one limit, or in
// another process, or one that is refused without asking (see
// PostgresOptions.MaxBlockedKeys). In one process, what the database refuses to
// requests of several is decided again, up to three times and in the first half of
// their timeout, where it is given back; for batches that may do so they wait a
// quarter of their timeout at a time. What is given back names the state that it was
// taken from, and is void once that is gone. A hit of a cost below 0 among them
// gives back in any case, and such a request is decided once; so is one that is
// refused by a look.
//
// # Time
//
// The database server's clock decides, read once a statement, so the clocks of
// the processes do not matter. A row's time never runs backwards: if the clock is
// set back, the later of it and what the row holds counts. A Memory store uses
// this machine's clock. Times are exact to the microsecond.
//
// # Failure
//
// A decision that does not come within its timeout is an error, never an answer:
// what to do then (let pass, or refuse) is the caller's. Whether such a hit was
// charged is not known. While the database does not answer, calls fail at once
// with ErrUnavailable instead of waiting for their timeout in turn; it is tried
// again at least every 0.8 seconds.
//
// Counts of limits that are not Durable are in an UNLOGGED table: if the server
// crashes they are gone, and every quota is full again. Durable ones survive a
// crash, but for the last fraction of a second unless SynchronousCommit is set.
//
// # Changing a limit
//
// Rows hold what was counted, not the limit, so a changed limit holds at once: a
// lowered one refuses until enough has expired, a raised one admits the rest. A
// changed window measures from the row's window_start. fixed_window, with or
// without a calendar, and sliding_window share their counters, so a switch
// between them goes on counting; token_bucket and gcra convert each other's row,
// giving away no more than the Events of one Window. A switch to any other
// algorithm starts with a full quota, once: each keeps its columns, so processes
// that disagree for a while (as in a rolling deployment) count apart, and add up.
// Where they share a counter and disagree about its window, the shorter turns it
// for both; and a row goes when the one that was last written has expired.
//
// # Keys
//
// Keys are data: they are passed as parameters, never written into SQL. A key of
// more than 512 bytes, or one that Postgres's text cannot hold (a NUL byte,
// invalid UTF-8), is stored as its SHA-256 digest. Hit.Secret stores any key so,
// which keeps credentials out of the tables. Keys appear in no error.
//
// # Tables
//
// There are two, of one shape: see TableSQL. They are those of the npm library
// pg-ratelimit, so a Node program and this package can share the rows of
// fixed_window and sliding_window limits.
package ratelimit
