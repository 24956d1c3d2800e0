// Package host holds the resources that the handlers of a proxy share: databases, each with its store,
// policies and histories.
//
// A Process has one Resource for each distinct set of settings, with a reference count. Open returns a Handle
// with references to the resources that the DataSources of a handler require. The last End closes a resource.
// After Release a Handle stays open for a while, so that a reload takes over its resources. An Outage and a
// Sampler bound how much the handlers log.
//
// Traefik interprets this package, so it has functions in place of some methods, integers with atomic
// functions, and loops without range over an integer: see internal/testkit/imports/interpreted.go.
package host
