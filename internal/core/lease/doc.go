// Package lease holds the units that a process has charged in advance: leases. It knows
// neither SQL nor a proxy. Package postgres charges the units and gives them back, and asks
// this package before it asks the database.
//
// Units of a lease are charged to the row before a hit wants them. So whatever a process
// does with them, no more passes than was charged. Three things can go wrong, and the rules
// against them are:
//
//   - Units may be used when the charge no longer counts. Each charge has a moment from which
//     its units are not used, see algorithm.Definition.Lease. It is measured on this
//     machine's monotonic clock from before the statement was sent, so a slow answer makes
//     the lease shorter, never longer.
//   - Units may be given back when the charge no longer counts, which would undo the charges
//     of others. Each charge has a claim. A statement that gives units back has no effect if
//     the claim does not hold.
//   - Units that are not used are missing to other processes. A lease is small: as much as was
//     used in a horizon, and a share of what is left. It ends one and a half horizons after its
//     charge, and what is unused then is given back. A row that may be used up before that gives
//     no units.
//
// A crash, or an answer that is lost, loses the units until the window turns or the bucket
// refills: at most the share of what was left, for each process and key.
//
// The files: set.go has the leases and the demand of keys without one. take.go decides
// hits. ask.go says what to charge, and updates the leases with the answers. end.go ends leases.
package lease
