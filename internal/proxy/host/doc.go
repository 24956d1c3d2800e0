// Package host holds the resources that the handlers of a proxy share: databases, each with its store,
// policies and histories.
//
// A Process has one Resource for each distinct set of settings, with a reference count. Open returns a Handle
// with references to the resources that the DataSources of a handler require. End removes
// the references of a Handle, and closes each resource without another reference. Release calls it after
// Handle.After, so that the handlers of a reload share the resources, and not while the Handle is Busy. An
// Outage and a Sampler bound how much the handlers log.
//
// Traefik interprets this package, so it has functions in place of some methods, integers with atomic
// functions, and loops without range over an integer: see internal/testkit/imports/interpreted.go.
package host
