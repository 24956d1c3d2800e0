// Package page serves the page that shows what the proxies on a database do, and its API. It knows the proxies
// only from the database.
//
//   - page.go: the server, what it refuses, and the files of the page
//   - view.go, chart.go: the page, as HTML of what the API answers
//   - collect.go, near.go: one collector for all open pages asks the databases
//   - banner.go, sections.go, proxies.go: what the page shows of it
//   - api.go, lists.go, why.go, refusals.go: questions
//   - words.go, names.go: texts for people
//   - metrics.go: the numbers of all proxies for Prometheus
//   - databases.go: connections
//
// A section is a part of the page with a JSON of its own. The script fetches the page once a second, and changes what
// is different.
package page
