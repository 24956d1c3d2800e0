// Package engine counts in one Postgres database, or in one shard. All processes share the counts. It is
// exact: the server decides, one statement for many hits.
//
// There are two tables of one shape, see TableSQL: an UNLOGGED one, and a logged one for limits that are
// Durable. Both are shared with the npm library pg-ratelimit, so a Node program and this package can share
// the rows of fixed_window and sliding_window limits.
package engine

// A call of Store.Take waits in a queue (package internal/core/batch). A worker collects the calls of a batch
// and has them decided here:
//
//   - store.go: Take and Reset, and what the registry of proxies has a store do. known.go: what needs no
//     database, of one call or of a batch: units of leases and remembered refusals (package lease).
//     server.go: statements, and the health of their server.
//   - work.go: the batch, and how its calls are finished. round.go: one round of it: plan, send, apply.
//     background.go: calls that nobody waits for, which go with it.
//   - transaction.go: requests of several hits, all or nothing, in one transaction. simulate.go: the same
//     decision in memory.
//   - plan.go: hits become entries. group.go: entries become the parameters of a statement, and rows of its
//     result are put into the entries.
//   - statement.go: the statements. Package algorithm has the part of each algorithm.
//   - leases.go: charges and refunds of leases. enter.go: the slots that hits take.
//   - locks.go: rows that another transaction has locked.
//   - setup.go: work that comes before decisions. migrate.go: the two tables. cleanup.go: expired rows.
//   - replaced.go: a server that was restored or replaced.
