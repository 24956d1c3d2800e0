// Package lease remembers rows of the tables, so that a process can decide many hits without the database. An
// engine has one Set. Each Cached of the Set holds any of these:
//
//   - A refusal: the row as it was when it refused a hit. It refuses further hits that cannot pass yet, and
//     makes transactions peek at the row before they charge it.
//   - A lock: the lock timeouts of statements on the row.
//   - A lease: units that were charged to the row in advance. Hits use them without a round trip.
//   - A LocalCounter, with on_error local: what the row held after its last decision, or this process's share
//     of it.
//     It decides no hit while the database decides, unless the row owes.
//
// The rows are divided into stripes, each with a mutex and an equal part of Options.Max. Half of Options.Max
// bounds the rows with a lease, and the other half the rows without one, so a flood of used-up keys evicts no
// lease. After KeepLocal, there may be five times as many rows without a lease.
//
// Times of type int64 are microseconds of Now, a monotonic clock that starts at Set.Born, unless a comment
// names the server's clock. The package has functions instead of methods because the interpreter of Traefik
// calls functions several times faster: see internal/testkit/imports/interpreted.go.
//
// # Leases
//
// All units of a lease are charged to the row before a hit uses them, so the hits that pass never exceed the
// charges, even if the process crashes. Three rules keep leases from doing harm:
//
//   - No unit is used after its charge has stopped counting. The units of a charge expire after a time that
//     algorithm.Definition.Lease returns. The time starts before the statement is sent, so a slow answer
//     makes the life of units shorter, never longer.
//   - A refund never undoes charges of other processes. Each charge has a claim, and a refund has no effect
//     if the row has another claim: the window has ended, the bucket was refilled, or the row was reset.
//   - Unused units are not withheld from other processes for long. A lease holds the units that its key used
//     in a horizon, and at most a share of the remaining quota. A lease on a row that may be used up within
//     the life of units gets no units. Units expire one and a half horizons after the last answer on the row,
//     and the next Sweep refunds them.
//
// A request of one hit that goes to the database also charges units for the lease of its row, as further hits
// of its entry. Every SweepInterval, other leases with few units left are charged together, and leases with
// expired units end. Refunds go with the next batch.
//
// A crash or a lost answer loses the units of a lease until the window ends or the bucket is refilled: at
// most one lease for each process and key.
package lease
