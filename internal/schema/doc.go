// Package schema holds the SQL that creates the tables of pg-ratelimit, and upgrades older tables in place.
// The store, the history and the policy run this SQL, and so do commands and operators.
//
// The SQL is in the .sql files. Numbered files make and change tables: each runs once in a database, and
// never changes after it has landed. All other files are made again by each upgrade: functions, views,
// triggers, rights and comments. The function rate_limit_about says what a database has. See CONTRIBUTING.md
// for how to change the schema. These invariants hold:
//
//   - An upgrade is one transaction, can run any number of times, by any number of processes, and keeps all
//
// rows.
//   - All names begin with rate_limit_, and are in the first schema of the search_path.
//   - An older program changes nothing in newer tables.
//   - Tables of another program with such a name are refused, and a server older than Postgres 15.
//
// Yaegi cannot embed files, so generated.go has the SQL without comments. After a change:
//
//	go generate ./internal/schema
package schema
