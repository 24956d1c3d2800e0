// Package schema holds the SQL that creates the tables of pg-ratelimit, and upgrades older ones in place.
// The store, the history and the policy run it.
//
// There are three parts. Counters creates the two tables of counts and the registry of proxies. History
// creates the audit log and the metrics. Policy creates everything for rules, users and API
// keys. All need Postgres 15 or newer, can run any number of times, and keep rows. All names begin with
// rate_limit_, and lie in the first schema of the search_path.
//
// The SQL is in the .sql files. Yaegi cannot embed files, so generated.go has each file as a constant,
// without comments. After a change:
//
//	go generate ./internal/core/schema
//
// parts.go lists the files of each part in their order. ready.go has the queries that find out whether a
// part is up to date, and others.go rejects the tables of other programs.
package schema
