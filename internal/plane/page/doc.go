// Package page serves a web page for operators that shows what all proxies on a database do, its API in JSON,
// and metrics for Prometheus.
//
// A question selects the rows of a view or a function, and the rows are its answer. Requests share an answer,
// and a Server runs its statement again only after an interval, so any number of open pages uses at most a
// twentieth of a connection's time. If the database does not answer in time, requests get the previous
// answer.
//
// The package reads only the database, in read-only transactions, and never talks to proxies. It refuses
// requests for hosts that are not its own, and redacts API keys in all responses.
package page
