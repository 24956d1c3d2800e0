// Package policy decides which limits apply to a request, by rules that are rows of a
// database: tiers, users, API keys, rules with their limits, overrides and bans.
//
// A Snapshot is the rules at one moment, compiled. Evaluate turns the Facts of a
// request and the Identity of its sender into a Verdict: refused, exempt, or a list of
// hits that a ratelimit.Store takes. Evaluate does no I/O and reads no clock.
//
// # How the rules are evaluated
//
//  1. Identity. A request with an API key is of the key's user, and has the key's own tier,
//     or else the user's.
//     A request without a key is of the user that the proxy authenticated. A request
//     without either is nobody's: its tier is Facts.Tier, and where a rule counts by user,
//     its network counts instead.
//  2. Order. Bans come first, then exempt rules, block rules and limits. Within each, the
//     rule with the higher priority comes first; rules of equal priority are in the order
//     of their names.
//  3. Families. Of the rules with limits of one family, only the first that matches
//     applies. A rule without a family applies whenever it matches. The rules after
//     a shadow rule apply as if it were not there. It does not apply itself after an enforced rule of its family
//     that matches.
//  4. Amount. The override for the key counts, else the one for the user, else the one for
//     the tier, else the rule's own amount.
//  5. Counter. The prefix is rule/<rule>/<limit>. The key is what CountBy names. Neither
//     contains the amount or the tier, so a change of plan keeps what was used. A rule does
//     not match a request that lacks what it counts by, except for a header: see
//     Rule.SkipWithoutHeader.
//  6. A rule that cannot be used is left out, and Snapshot.Wrong names it. In a Policy it stays as it was
//     in the snapshot in force, if that has a rule of its name.
//
// # How changes take effect
//
// A Policy keeps a Snapshot of a database up to date, and looks identities up. Rules and
// identities that are known hold while the database does not answer. Bans are looked at before any look-up. If a look-up
// fails, one filter is left: see Policy.Evaluate.
//
// What a statement reads counts only if it sees all triggers of the policy: see readWhole.
//
// # Cost
//
// The index of a Snapshot files each rule under one kind of condition: paths, hosts, networks or
// tiers. The rule is filed under every value of that kind. The kind is the one with the fewest other rules. So Evaluate
// tries few of many selective rules. With Options.Remember, a Snapshot also remembers which rules match by tier, method,
// host and path: a look into the index is dear in the interpreter. Evaluate allocates nothing where counters are of users.
// Measure it in the interpreter:
//
//	cd integration && go test -run xxx -bench 'Interpreted/Postgres,_policy$' -benchtime 20000x .
//
// The package runs compiled and interpreted; internal/testkit/imports describes what that asks of the
// code. In the interpreter, a call of a function also pays for each expression in it, executed
// or not. Therefore what is rare is a function of its own.
//
// # Files
//
//   - rows.go: what the database delivers. verdict.go: facts of a request, and the verdict on it. settle.go: what a request
//     really cost.
//   - key.go: API keys. path.go: the one form of a path and of a host, and paths with parameters.
//   - identities.go: caches of keys and users.
//   - compile.go: rules become a Snapshot. pattern.go, counter.go: patterns and counters'
//     keys. amount.go: overrides and billing periods. bans.go: what is banned.
//     index.go: which rules match. memo.go: what is remembered of it.
//   - match.go: Evaluate, also if it is not known who sends a request. trace.go: why each rule applies or not.
//   - policy.go: a Policy. refresh.go: what a Policy does in the background: it polls for changes (poll.go), reads the rules
//     and bans that have changed (load.go has the statements, and read.go runs them), forgets the identities that have
//     changed, and swaps the snapshot as a whole. occasionally.go: what it does from time to time. migrate.go: the tables. lookup.go: identities that are not cached, many in one statement.
package policy
