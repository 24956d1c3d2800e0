// Package page serves a web page for operators that shows what all proxies on a database do, its API in JSON,
// and metrics for Prometheus.
//
// A question is a statement on a view or a function, and its answer is the rows. All requests share an
// answer: a Server runs the statement again only after an interval, so any number of open pages uses at most
// a twentieth of a connection's time. If the database does not answer in time, requests get the previous
// answer.
//
// The package reads only the database, in read-only transactions, and never talks to proxies. A Server
// refuses requests for hosts that are not its own, and redacts API keys in all responses.
package page
