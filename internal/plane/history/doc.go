// Package history records the outcomes of requests in Postgres, without slowing requests: each decision in
// the audit log, and sums in the metrics, from which usage and invoices are computed.
//
// Add copies a Record of a request into a Writer, which turns it into a row of the audit log and adds it to a
// cell of the metrics. Equal refusals within a second share a row, and requests of one minute, user, key,
// limit and endpoint share a cell. A background flush each second moves rows and cells into parcels, and
// sends each parcel in a transaction. Upkeep creates and drops partitions, and applies the retention.
//
// Three invariants hold:
//
//   - Add never waits for the database. While the database is slow or down, rows and cells wait in memory up
//     to a bound. Beyond it the oldest rows and the newest cells are dropped, and Stats counts them.
//   - Each parcel is written at most once. Its number is stored in the same transaction, and it does not
//     change until its result is known. After an unknown result it is sent again under its number.
//   - No text of a request can make a parcel fail: texts are valid UTF-8 without NUL and of bounded length.
//
// Yaegi interprets this package in Traefik: see internal/testkit/imports.
package history
