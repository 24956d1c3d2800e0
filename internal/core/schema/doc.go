// Package schema holds the SQL that makes the tables of pg-ratelimit, and brings older ones
// up to date in place. Package postgres runs it.
//
// There are three parts. Counters makes the two tables of counts and the registry of proxies
// (nodes.go), and History makes the audit log,
// the metrics and the usage, on any Postgres from 14 on.
// Policy makes everything that rules, users and API keys need, on Postgres 15 or newer:
//
//   - policy_lists.go: what the constraints need
//   - policy_people.go, policy_rules.go, policy_overrides.go, policy_changes.go: the tables
//     with their constraints and comments
//   - policy_usable.go: what refuses rules that proxies cannot use, and renames users and tiers
//   - policy_triggers.go: the log of changes
//   - policy_rule_function.go, policy_explain.go: functions for administrators
//   - policy_proxy_functions.go: functions for the role of the proxies
//   - policy_views.go: views
//   - policy.go: all of this in its order, and its version
//
// Of History:
//
//   - history_tables.go: the tables
//   - history_partitions.go: the partitions of the audit log
//   - history_record.go: the functions with which proxies write
//   - history_rollup.go: hours and days from minutes, and percentiles
//   - history_upkeep.go: retention, and all that is to be done from time to time
//   - history.go: all of it in its order, and its version
//
// All names begin with rate_limit_. They lie in the first schema of the search_path.
package schema
