// Package history records the outcomes of requests in Postgres without slowing requests. Operators read
// single requests in the audit log, which has a row for each recorded request. Usage and invoices are
// computed from the metrics, which have sums of requests for each minute, hour and day.
//
// Add copies a Record of a request into a Writer. The Writer turns the record into a row of the audit log,
// and adds the record to a cell of the metrics. Equal refusals within a second share a row. Requests with the
// same minute, user, key, limit and endpoint share a cell. Each second, a background flush moves rows and
// cells into parcels and sends each parcel in one transaction. Upkeep creates the partitions of coming days,
// and drops those past their retention.
//
// Three invariants hold:
//
//   - Add never waits for the database. While the database is slow or down, rows and cells wait in memory up
//     to a bound. Beyond the bound, the oldest rows and the newest cells are dropped, and counted in Stats.
//   - Each parcel is written at most once, because the transaction that writes a parcel also stores its
//     number. If it is unknown whether a transaction has committed, the same parcel is sent again with the
//     same number.
//   - No text of a request can make a parcel fail: all texts are valid UTF-8 without NUL and have bounded
//     lengths.
//
// Yaegi interprets this package in Traefik: see internal/testkit/imports.
package history
