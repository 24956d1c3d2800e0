// Package engine counts in one Postgres database, or in one shard. All processes share the counts, which are
// exact: the server decides, one statement for many hits.
//
// There are two tables of one shape, see TableSQL: an UNLOGGED one, and a logged one for limits that are
// Durable. Both are shared with the npm library pg-ratelimit, so a Node program and this package can share
// the rows of fixed_window and sliding_window limits.
package engine

// A call of Store.Take waits in a queue (package internal/core/batch). A worker collects the calls of a batch
// and decides them here:
//
//   - store.go: Take, Reset and queues. memory.go: decisions from memory, by the units of leases and by
//     remembered refusals (package lease).
//   - decide.go: a batch, and how its calls are finished. round.go: one round of it: plan, send, apply.
//   - background.go: calls that nobody waits for, which go with a batch.
//   - transaction.go: requests of several hits, all or nothing, in one transaction. simulate.go: the same
//     decision in memory.
//   - plan.go: hits become entries. group.go: entries become the parameters of a statement, and rows of its
//     result are read into the entries.
//   - statement.go: the statements. Package algorithm has the part of each algorithm.
//   - leases.go: charges and refunds of leases. slots.go: the slots that hits take.
//   - locks.go: rows that another transaction has locked.
//   - server.go: sends statements, and records the health of their server.
//   - setup.go: work that comes before decisions. migrate.go: the two tables. cleanup.go: expired rows.
//   - replaced.go: a server that was restored or replaced. stats.go: counts for metrics.
