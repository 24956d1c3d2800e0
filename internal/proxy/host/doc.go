// Package host holds what the handlers of a proxy share: databases, with their stores, policies and
// histories. Handlers with equal settings share one of each. The last of them closes it.
//
//   - process.go: a process, a handler's share of what the process has open, and reference counts.
//   - source.go: which databases a handler uses. database.go: an open database, and what works in it.
//   - outage.go: what the log says about a database without decisions. log.go: lines of the log.
//   - version.go: the version of pg-ratelimit.
//
// Traefik interprets this package: see internal/testkit/imports/interpreted.go for the restrictions.
package host
