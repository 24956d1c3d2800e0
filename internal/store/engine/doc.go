// Package engine is the last store of a chain, see package store. All processes on one Postgres database share its
// counts. It is exact: the server decides, one statement for many hits.
//
// There are two tables of one shape, see TableSQL: an UNLOGGED one, and a logged one for
// limits that are Durable. Both are shared with the npm library pg-ratelimit, so a Node
// program and this package can share the rows of fixed_window and sliding_window limits.
package engine

// A call of Store.Take waits in a queue (package internal/core/batch). A worker collects the
// calls of a batch and has them decided here:
//
//   - store.go: Take and Reset. known.go: what needs no database, of one call or of a batch: units
//     that are charged in advance (package leases) and known refusals (package known). server.go: a
//     database that does not answer.
//   - decide.go: the batch. round.go: one round of it: plan, send, apply. kinds.go: the store's own calls that go
//     with it (package own). dispatch.go: what a batch needs, and how its calls are finished.
//   - transaction.go: requests of several hits, all or nothing, in one transaction.
//     simulate.go: the same decision in memory.
//   - plan.go, entry.go, group.go: hits become entries, entries become the parameters of
//     statements.
//   - statement.go: the statements. Package algorithm has the part of each algorithm.
//   - result.go: the rows of a result.
//   - leases.go: what the rows of a batch say to leases. enter.go: the slots that hits take.
//   - locks.go: rows that another transaction has locked.
//   - migrate.go, schema.go: the two tables. cleanup.go: expired rows. bound_keys.go: a bound of the rows of a prefix.
//   - background.go: what the registry of proxies has a store do.
//     timeline.go: a server that was restored or replaced.
