// Package batch collects calls that wait for a decision, so that they are decided together (group commit).
// While a batch is in flight, calls wait in a queue. When the batch returns, the waiting calls form the next
// batch. A lone call waits for one round trip, many calls share a round trip, and no timer is involved. The
// busier a process is, the larger its batches are.
//
// A Call holds the hits of one request. A Queue collects Calls; its workers form batches, and pass each one
// to a Decider. The package makes no decisions itself. A Job is a change for which nobody waits, such as a
// settlement. A Backlog holds Jobs until a batch takes them along. Split divides a call into parts if some of
// its hits are decided independently. A Bill has what a request really cost.
//
// Invariants:
//   - A caller owns its Call until Send and after Wait. In between the Queue owns the call, and while a batch
//     is in flight, its worker does.
//   - Finish ends the wait of each call exactly once, even if DecideBatch fails.
//   - No mutex is held while DecideBatch runs.
//   - The number of hits in a batch is bounded. The bound adapts to the time that batches take (type pace).
//
// Traefik interprets this package: see internal/testkit/imports/interpreted.go for the restrictions.
package batch
