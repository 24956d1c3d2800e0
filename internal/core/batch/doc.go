// Package batch collects calls that wait for a decision, so that they are decided together (group
// commit). While a batch is in flight, calls wait in a queue; when the batch returns, those that have
// gathered form the next batch. A lone call waits for one round trip, many calls share one, and no
// timer is involved. The busier a process is, the larger its batches are.
//
// A Call holds the hits of one request. A Queue collects Calls, and passes each batch to the function
// Options.Decide. It makes no decisions itself. Queue.mu guards the queue, and is not held while Decide
// runs. Finish ends the wait of each call exactly once.
//
//   - call.go: a call, its parts (hits that are decided independently), and the end of its wait.
//   - background.go: calls that nobody waits for.
//   - queue.go: calls enter the queue and wait. worker.go: workers form batches. pace.go: the size of
//     batches.
//
// Traefik interprets this package: see internal/testkit/imports/interpreted.go for the restrictions.
package batch
