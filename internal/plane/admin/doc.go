// Package admin is what an administrator does with the database of the policy: it lists and
// changes rules, users, API keys and bans, explains decisions, and reads counters. The
// commands of the Caddy module print what it returns.
//
//   - database.go, errors.go: the connection, and what its errors mean for people
//   - locks.go: which sessions hold a lock that a statement waits for
//   - values.go: settings of the form name=value
//   - migrate.go: the tables
//   - rules.go, rule_set.go, rule_limits.go: rules and their limits
//   - policy_file.go, policy_rows.go, policy_replay.go: the policy as a file
//   - users.go, user_set.go, keys.go, bans.go: users, API keys, bans
//   - explain.go, left.go: what the policy does with a request
//   - counters.go, renamed.go: counters
//   - changes.go, nodes.go, pause.go: the log of changes, the proxies, and the pause of all limits
//   - override.go: an override for a while. near.go: limits of configurations
//   - live.go: what proxies do now, and the name of a person in the log of changes
//   - region.go: the replication of the policy to regions
//   - period.go, audit.go, usage.go, traffic.go: what the history says
//   - upkeep.go: the upkeep of the history
//   - forget.go: what is stored about a person
//   - replay.go, replay_limits.go, replay_trial.go: what other limits would have
//     done to the recorded requests
//
// An API key leaves this package only as the result of CreateKey and RotateKey. Errors contain
// no key, and a database gets only the digest.
package admin
