// Package host holds the resources that the handlers of a proxy share: databases, each with its store,
// policies and histories.
//
// A Process has one Resource for each distinct set of settings, with a reference count. Open returns
// Databases, with references to the resources that the DataSources of a handler require. End removes these
// references, and closes each resource without another one. Release calls it after Databases.After, so that
// the handlers of a reload share the resources, and not while Databases.Busy is above 0. An Outage and a
// Sampler bound how much the handlers log.
//
// Traefik interprets this package, so it has functions in place of some methods, integers with atomic
// functions, and loops without range over an integer: see internal/testkit/imports/interpreted.go.
package host
