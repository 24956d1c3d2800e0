// Package history records what happened to requests: the audit log, the metrics by minute, and
// the usage of users and API keys. A Writer collects records off the path of the requests, and
// writes them to Postgres.
//
//   - record.go: what is recorded of a request. settings.go: the settings of a Writer.
//   - add.go: a record is added. clean.go: texts as Postgres can store them, and masked addresses.
//   - pending.go, row.go: the rows of the audit log that wait. totals.go, buckets.go: the metrics and
//     the usage that wait.
//   - writer.go: the background work. send.go, parcel.go: a batch is written, once.
//   - upkeep.go: partitions, roll-up and retention. tend.go: a Writer calls it.
//
// Traefik interprets this package: see package batch for what that means.
package history
