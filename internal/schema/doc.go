// Package schema holds the SQL that creates the tables of pg-ratelimit, and upgrades older tables in place.
// The store, the history and the policy run this SQL, and so do commands and operators.
//
// The schema has three parts. Counters creates the two tables of counts and the registry of proxies. History
// creates the audit log and the metrics. Policy creates the tables of rules, users and API keys. The queries
// HistoryReady, NodesReady and Ready test whether a part is up to date. RestoredInPart tests whether a
// restore is running or has failed. These invariants hold for each part:
//
//   - A part can run any number of times, by any number of processes, and keeps all rows.
//   - All names begin with rate_limit_, and are in the first schema of the search_path.
//   - A part refuses a table of another program with such a name, and a server older than Postgres 15.
//
// The SQL is in the .sql files. Yaegi cannot embed files, so generated.go has each file as a constant,
// without comments. After a change:
//
//	go generate ./internal/schema
package schema
