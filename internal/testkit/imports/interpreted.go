package imports

// Traefik interprets its plugins with Yaegi (v0.16.1), which has the standard library of Go 1.22. The tests
// of this package and of integration check these rules as far as the source shows them.
//
// An interpreted call of a method costs 1.7 µs, of a function 0.3 µs plus 0.07 µs for each local variable and
// each intermediate value, a step within a function 0.03 µs, a call of a compiled function 0.2 µs. Therefore:
//
//   - Work for each request is done in one loop for all calls of a batch: serve.Fill, serve.Finish,
//     addRequestsInline, storeKeys, refuseRemembered and readRows in package engine, respond.SetResponses,
//     Definition.PeekAll in package algorithm. Without the loop of PeekAll a request on sliding_window
//     takes 1.1 times the processor time, and 1.4 times if all keys differ.
//   - Such a loop, or a fast function, has a full form, which has all cases and decides alike:
//
//	fast form                   full form                      what is left to the full form
//	traefikplugin: useLease     handler.ServeHTTP              requests without units of a lease
//	traefikplugin: pass         passWrapped                    upstreams that send headers of limits
//	serve: Finish               finishInFull                   requests with limits that are not Simple
//	respond: SetResponses       SetFields, Outcome.SetContent  headers other than X-RateLimit
//	history: AddBatch           Add                            refusals in a new row of the audit log
//	policy: Recall              Evaluate                       API keys that are not cached
//	policy: EvaluateIdentity    evaluateInFull                 requests without a verdict in the memo
//	reading: FrequentKey        Keys                           keys other than one header or address
//	engine: addRequestsInline   addEntry, addUnusual           all but charges of rows new in a plan
//
//   - Functions on the path of each request take their subject as an argument instead of a receiver.
//   - The frequent case is inline in a loop, and a function has the rare case.
//   - A local variable holds what a loop would otherwise compute again.
//
// Yaegi lacks, or misreads:
//
//   - Packages outside the standard library, generics, min, max, clear, embed, unsafe, and range over an
//     integer or a function.
//   - Loop variables that a closure keeps: copy them (x := x). A function literal in a loop must not be for
//     another goroutine: an earlier one may run instead.
//   - A select that waits in several goroutines: they would share its cases. A context that ends with
//     either of two events replaces it (setup.go in package engine).
//   - A struct type that refers back to itself through several other types: Yaegi takes one type for two.
//   - append(x, nil): use a typed nil. Comparing two values of an interface of ours. The index of a range
//     over a string, which counts characters. A range with a value over channels, which panics.
//   - Named results that are read before they are set. A call of a method, of a closure or through a function
//     value begins with new results, and a call of a declared function by its name does not: with x = f() the
//     result begins with the value of x, in a loop with := it begins with the previous result of the same
//     call, and with return f() it begins with the result of the function that returns. The variable changes
//     together with the result, before the call returns. A recovered panic leaves all results as they were.
//   - A deferred call that panics: the deferred calls after it would not run. A deferred call of a variable
//     that holds a function literal: it waits for the lock of its own frame.
//   - A promoted field if a field before the embedded struct has a type with a field of that name: Yaegi
//     takes that one. Embed first.
//   - n, ok := m[k], and n, ok := v.(T): n stays as it was if ok is false. In a loop it is _. If v is a
//     struct without fields, such as http.NoBody, v.(T) panics.
//   - The arguments and the receiver of a deferred call, and of a method that go starts: Yaegi evaluates them
//     when the call runs, so nothing may set them in the meantime. The same holds for the receiver of a
//     method value, and for a variable that was assigned to an interface of ours.
//   - A struct literal that is assigned to a variable: it makes a new variable, which its closures and its
//     pointers would not see. A literal may be assigned to a field or an element.
//
// hazards_test.go has further constructs, and values_test.go the ones that need the types of the code.

// Interpreted lists the packages of this module that Traefik interprets: everything that
// traefikplugin imports.
var Interpreted = []string{
	"internal/core/algorithm", "internal/core/batch", "internal/core/health", "internal/core/lease",
	"internal/core/option", "internal/core/outcome", "internal/core/pg",
	"internal/plane/history", "internal/plane/policy",
	"internal/proxy/host", "internal/proxy/pgwire", "internal/proxy/reading", "internal/proxy/respond",
	"internal/proxy/serve", "internal/proxy/settings", "internal/proxy/usage", "internal/schema",
	"internal/store", "internal/store/engine", "internal/store/ledger", "internal/store/memory",
	"internal/store/registry", "internal/store/process", "internal/store/slots", "internal/store/statement",
	"ratelimit", "ratelimit/pgdb",
	"traefikplugin",
}
