// Package page serves a web page for operators that shows what all proxies on a database do, its API in JSON,
// and metrics for Prometheus.
//
// A question is a statement on a view or a function of the schema, and its answer is the rows. All requests
// share one answer: a Server runs the statement again only after an interval, which grows with the duration
// of the statement. So the load on the database does not depend on the number of open pages. If the database
// does not answer in time, requests get the previous answer.
//
// The package reads only the database, in read-only transactions, and never talks to proxies. A Server
// refuses requests for hosts that are not its own, and redacts API keys in all responses.
//
// The page is tested where it runs: in a browser by integration/page
// (TestThePageAnswersTheQuestionsOfANight), and as an API by caddymodule (TestThePageRefusesWhatItIsNotFor,
// TestThePageShowsNoAPIKey).
package page
