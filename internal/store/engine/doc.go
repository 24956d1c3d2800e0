// Package engine counts in the tables of one Postgres database, or of one shard. All processes share the
// counts, which are exact: the server decides, with one statement for many hits.
//
// The counts are in two tables with the same columns (TableSQL): an UNLOGGED table, and a logged table for
// limits that are Durable. The npm library pg-ratelimit uses the same tables, so that a Node program and this
// package can share the rows of fixed_window and sliding_window limits.
//
// An Engine decides a call from memory if it can: from a lease, or from a remembered refusal (package lease).
// Otherwise the call waits in a queue (package batch). The worker of a batch owns its calls, and a value of
// type work that decides them in rounds. A round plans, sends and applies:
//
//   - A plan turns the hits of calls into entries (equal hits on one row), groups the entries into
//     statements, and orders the statements in stages. Requests of several hits are a transaction, all or
//     nothing.
//   - The type server sends the statements in one pipeline, and retries transactions that lost a conflict.
//   - The results become decisions. Requests that failed because of another request in their statement get
//     another round.
//
// A round also sends jobs, for which nobody waits. The setup migrates the tables before the first decision,
// cleanups delete expired rows, and checkIdentity detects a server that was restored or replaced.
//
// Invariants:
//   - Each call of a batch is finished exactly once, even if something panics.
//   - A row occurs at most once in a statement, and all statements lock rows in the same order.
//   - No lock in the database is held from one round trip to the next.
//
// The files, from the top down: engine.go, queue.go, decide.go, locks.go, round.go, jobs.go, transaction.go,
// slots.go, apply.go, finish.go, leases.go, memory.go, lanes.go, plan.go, group.go, cleanup.go, server.go,
// setup.go, replaced.go, stats.go.
//
// The tests of this package also test ledger, slots, process and statement of internal/store, by what they
// decide in a real database. The name of a file of tests begins with that of the file or the package that it
// tests, such as ledger_, locks_ or transaction_. Other names begin with a subject: citus_ and shards_ are
// tests of several servers, local_ those of outages, steps_ those that compare the steps in SQL with those in
// Go, and simulation_ those of random faults, on a fake database.
//
// Traefik interprets this package: see internal/testkit/imports/interpreted.go for the restrictions.
package engine
