// Package admin is what an administrator does with the database of the policy: it lists and
// changes rules, users, API keys and bans, explains decisions, and reads counters. The
// commands of the Caddy module print what it returns.
//
//   - database.go, errors.go: the connection, work that ends with its first error, what errors mean for people, and
//     which sessions hold a lock that a statement waits for
//   - answers.go: the rows of answers, and questions of several commands
//   - migrate.go: the tables, and their shards on Citus
//   - set.go, parse.go: settings of the form name=value, as arguments of the functions that change rows
//   - rules.go: rules and their limits
//   - policy_apply.go: the policy as a document
//   - users.go, keys.go, bans.go: users and tiers, API keys, overrides and bans
//   - explain.go, left.go: what the policy does with a request, and what is left of limits
//   - counters.go, proxies.go: counters; the proxies, and the log of changes
//   - audit.go, history.go: what the history says
//   - forget.go: what is stored about a person
//   - texts.go: texts for people that commands and the page share
//   - replay.go, replay_limits.go, replay_trial.go: what other limits would have
//     done to the recorded requests
//
// An API key leaves this package only as the result of CreateKey and RotateKey. Errors contain
// no key, and a database gets only the digest.
package admin
