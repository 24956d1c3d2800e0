// Package page serves the page that shows what the proxies on a database do, with the rows behind it as JSON.
// It changes nothing, and reads the database alone.
//
//   - page.go: the server, what it refuses, and the files of the page
//   - answers.go: the questions, each the rows of a view or a function
//   - databases.go: connections
//   - metrics.go: the numbers of all proxies for Prometheus
package page
