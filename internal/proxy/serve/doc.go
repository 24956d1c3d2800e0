// Package serve takes a request through the steps that both proxies share: the policy, the limits that match,
// their decision, the record for the history, and the settlement. An adapter parses placeholders, connects to
// the database, serves the request, and sends the response.
//
// A Configuration is the text of a handler's settings. Compile turns it into a Site with Zones, its limits. A
// LimitSet is a combination of zones that apply together. Decide takes a Request through all steps:
// FindLimits, ReadUpload, Fill, Take and finishInFull. In Traefik a queue calls Fill and Finish for all
// requests of a batch. An Upload is the body of a request to a language model. A Flight holds it, and the
// slots of a request, until its end. A Settling charges the cost that its response reports.
//
// A Site and all that it refers to is immutable after Prepare, except for its cache of LimitSets. A Request
// has one owner: the goroutine that serves it, or the worker of the queue while its Call waits. Adapters end
// a Flight and a Settling after each response, even after a panic.
//
// Traefik interprets this package, so it has functions in place of some methods, integers with atomic
// functions, and loops without range over an integer: see internal/testkit/imports/interpreted.go.
package serve
