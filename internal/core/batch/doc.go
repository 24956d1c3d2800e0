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
//   - queue.go: calls enter the queue and wait. worker.go: workers form batches. pace.go: the size of
//     batches.
//
// # The interpreted plugin
//
// Traefik interprets its plugins with Yaegi (v0.16.1). An interpreted call of a method
// costs 1.7 µs, of a function 0.3 µs plus 0.07 µs for each local variable and each
// intermediate value, a step within a function 0.03 µs, a call of a compiled function
// 0.2 µs. This explains some unusual code in the interpreted packages:
//
//   - Work that each request needs is done for all calls of a batch in one loop, not for
//     each request in a function of its own: Queue's fill and deliver, postgres's addRequests,
//     storeKeys, refuse and readCells, respond.SetAllHeaders beside respond.SetHeaders,
//     algorithm.LookAll. The comments of storeKeys and of SetAllHeaders have figures. Without the
//     loop of LookAll a request on sliding_window takes 1.1 times the processor time, and 1.4 times
//     if all keys differ (go test -run xxx -bench 'Interpreted/Postgres(,_many_keys)?$'
//     -benchtime 20000x . in integration, in turns). Requests that leases decide need none of them.
//   - Functions on the path of each request take their subject as an argument and are not
//     methods (Send, Finish).
//   - The frequent case is written inline in a loop. The rare case is a function.
//   - A local variable holds what a loop would otherwise compute again.
//   - Loop variables that a closure keeps are copied (x := x); the code uses no
//     generics, min, max or clear, and does not range over an integer or a function.
//   - No select waits in several goroutines at once: they would share its cases. A context
//     that ends with either of two events replaces it (see postgres, migrate.go).
//   - No struct type refers back to itself through several other types: Yaegi then takes
//     one type for two.
//   - append(x, nil) fails; a typed nil works.
//   - A named result is set before it is read. A call of a method, of a closure or through a
//     function value begins with new results. A call of a declared function by its name does
//     not. With x = f(), the result begins with the value of x, even if x is a field. In a loop,
//     with := or without a variable, it begins with the previous result of the same call. With
//     return f(), it begins with the result of the function that returns. A variable or field
//     changes together with the result, before the call returns: nothing else reads it during the
//     call. A panic that is recovered in a deferred call leaves all results as they were, named or
//     not.
//   - A deferred call does not panic: the deferred calls after it would not run.
//   - n, ok := m[k], and n, ok := v.(T), leave n as it was if ok is false. n is
//     therefore not used then, and in a loop it is _.
//   - A deferred call gets its arguments and its receiver when it runs, and so does a method that
//     go starts. Nothing sets them in the meantime. The same is true of the receiver of a method
//     value, and of a variable that was assigned to an interface of ours: they are not set again.
//   - A struct literal makes a new variable, or sets a field or an element. No variable is set to
//     one: its caller, its closures and its pointers would not see it.
//   - No function literal in a loop is for another goroutine: an earlier one may run instead.
//   - Two values of an interface of ours are not compared: they differ even if they are one
//     pointer. A range over a string has no index: it would count characters.
//   - integration/yaegi_hazards_test.go has the other constructs, with a proof of each.
//     internal/testkit/imports/values_test.go looks for what needs the types of the code.
//
// CONTRIBUTING.md lists the packages. Tests in internal/testkit/imports and integration check these
// rules as far as the source shows them.
package batch
