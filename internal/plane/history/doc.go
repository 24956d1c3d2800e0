// Package history records the outcomes of requests in Postgres without slowing requests. The audit log has
// each decision, and the metrics have sums from which usage and invoices are computed.
//
// Add copies a Record of a request into a Writer. The Writer turns the record into a row of the audit log and
// adds it to a cell of the metrics. Equal refusals within a second share a row. Requests with the same
// minute, user, key, limit and endpoint share a cell. Each second a background flush moves rows and cells
// into parcels and sends each parcel in a transaction. Upkeep creates and drops partitions, and applies the
// retention.
//
// Three invariants hold:
//
//   - Add never waits for the database. While the database is slow or down, rows and cells wait in memory up
//     to a bound. Beyond the bound, the oldest rows and the newest cells are dropped. Stats counts them.
//   - Each parcel is written at most once. Its number is stored in the same transaction, and the parcel does
//     not change until its result is known. After an unknown result it is sent again with the same number.
//   - No text of a request can make a parcel fail: all texts are valid UTF-8 without NUL and have bounded
//     lengths.
//
// Yaegi interprets this package in Traefik: see internal/testkit/imports.
package history
