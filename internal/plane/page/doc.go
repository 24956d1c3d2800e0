// Package page serves a web page for operators that shows what all proxies on a database do, its API in JSON,
// and metrics for Prometheus.
//
// A Server answers each question of the page with the rows of a view or a function. Requests share the answer
// of a question, and the Server asks it again only after an interval, so any number of open pages loads the
// database by at most a twentieth. If the database does not answer in time, requests get the previous answer.
//
// The package reads only the database, in read-only transactions, and never talks to proxies. It refuses
// requests for hosts that are not its own, and hides API keys in all answers.
package page
