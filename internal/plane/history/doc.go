// Package history records what happened to requests: the audit log, and the metrics, which usage and
// invoices add up.
//
// A Writer collects Records off the path of the requests, and writes them to Postgres in batches. Add
// never waits. When the database is slow or down, records wait in memory up to a bound; beyond it the
// oldest are dropped, and Stats counts them. Each batch has a number and is written exactly once, even
// if an attempt to write it has an unknown result. Upkeep creates and drops partitions, and applies the
// retention.
//
//   - record.go: what is recorded of a request. settings.go: the settings of a Writer.
//   - add.go: a record is added. clean.go: texts as Postgres can store them, and masked addresses.
//   - pending.go, row.go: the rows of the audit log that wait. totals.go, buckets.go: the metrics that wait.
//   - writer.go: the background work. send.go, parcel.go: a batch is written, once. columns.go: the columns.
//   - upkeep.go: partitions and retention. tend.go: a Writer calls it.
//
// Yaegi interprets this package in Traefik: see internal/testkit/imports.
package history
