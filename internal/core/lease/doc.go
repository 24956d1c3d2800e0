// Package lease remembers rows of the tables, so that many hits need no database. A process has one Set. Each
// Row of it holds any of these:
//
//   - A refusal: until when the row refuses a cost (refusal.go).
//   - A lock: when statements last gave up waiting for the row, and whether a transaction on it is likely to
//     be rolled back (lock.go).
//   - A lease: units that were charged to the row before a hit uses them (take.go, charge.go, end.go).
//
// The map of rows is divided into stripes, each with a mutex. Rows with a lease take at most half of the Set,
// and the other rows the other half: a flood of keys that are used up evicts no lease.
//
// # Leases
//
// Units are charged to the row before a hit uses them. So no more passes than was charged, whatever the
// process does. Three rules keep leases from doing harm:
//
//   - A unit is not used after its charge has stopped to count. Each charge has a time from which on its
//     units are not used, see algorithm.Definition.Lease. The monotonic clock of this machine measures it
//     from before the statement was sent, so a slow answer makes the lease shorter, never longer.
//   - A refund does not undo the charges of others. Each charge has a claim, and a refund has no effect if
//     the row has another one: its window has ended, its bucket was refilled, or it was reset.
//   - Units that nobody uses are not missing to other processes for long. A lease holds what its key used in
//     a horizon, and at most a share of what is left. A row that may be used up within the life of a lease
//     gives no units. Units end one and a half horizons after the last answer on the row, and are refunded.
//
// Units are charged as further hits in the entry of a request that asks the database for the row anyway. A
// lease with few units left is renewed together with others, at most ten times a second. Refunds are gathered
// as well.
//
// A crash or a lost answer loses the units until the window ends or the bucket is refilled: at most the share
// of what was left, for each process and key.
package lease
