// Package schema holds the SQL that makes the tables of pg-ratelimit, and brings older ones
// up to date in place. Package postgres runs it.
//
// The SQL is in the .sql files. The interpreter cannot embed files, so generated.go has each file as
// a constant, without comments. After a change:
//
//	go generate ./internal/core/schema
//
// There are three parts. Counters makes the two tables of counts and the registry of proxies, and
// History makes the audit log, the metrics and the usage. Policy makes everything that rules, users
// and API keys need. All need Postgres 15 or newer. parts.go lists the files of
// each part in their order. ready.go has the queries that tell whether a part has nothing to do, and
// others.go refuses the tables of other programs.
//
// All names begin with rate_limit_. They lie in the first schema of the search_path.
package schema
