// Package serve takes a request through its steps: the policy, the limits that match, their decision, the
// record and the settlement. Decide in steps.go lists the steps. An adapter supplies the texts of
// placeholders and the driver of the database, serves the request, and responds.
//
//   - configuration.go: a configuration as text becomes a Site. sources.go: the databases of a Site.
//   - site.go: a Site. zone.go: a limit. limits.go: the limits of a request. match.go: matchers for Traefik.
//   - request.go: a request. steps.go: its steps. ask.go, policy.go: the policy. decide.go: the decision.
//   - record.go: what the history has. settle.go, settle_body.go: what a request cost by its response.
//   - flight.go: requests in flight. url.go, network.go: one form of a host, a path and an address.
//
// Traefik interprets this package: see internal/testkit/imports/interpreted.go for the restrictions.
package serve
