// Package page serves the page that shows what the proxies on a database do, and its API. It knows the proxies
// only from the database. While a page is open, it says so in the registry of proxies, and each proxy then writes
// once a second what it does.
//
//   - page.go, guard.go, static.go: the server, what it refuses, and the files of the page
//   - collect.go, slow.go: one collector for all open pages asks the databases
//   - live.go: what the proxies report, and the rates between two reports
//   - banner.go, sections.go, proxies.go, limits.go: what the page shows of it. stream.go sends it.
//   - api.go, why.go, refusals.go, words.go: questions. act.go, actions.go, overrides.go: actions
//   - metrics.go: the numbers of all proxies for Prometheus
//   - databases.go: connections
//
// A section is a part of the page with a JSON of its own.
package page
