// Package policy decides which limits apply to a request, by rules that are rows of a database: tiers,
// users, API keys, rules with their limits, overrides and bans.
//
// A Snapshot is the rules at one moment, compiled. Evaluate turns the Facts of a request and the Identity
// of its sender into a Verdict: refused, exempt, or a list of hits that a ratelimit.Store takes. Evaluate
// does no I/O and reads no clock.
//
// # How the rules are evaluated
//
//  1. Identity. A request with an API key is of the key's user, and has the key's own tier, or else the
//     user's. A request without a key is of the user that the proxy authenticated. A request without either
//     is nobody's: its tier is Facts.Tier, and where a rule counts by user, its network counts instead.
//  2. Order. Bans come first, then exempt rules, block rules and limits. Within each, the rule with the
//     higher priority comes first; rules of equal priority are in the order of their names.
//  3. Families. Of the rules with limits of one family, only the first that matches applies. A rule without
//     a family applies whenever it matches. The rules after a shadow rule apply as if it were not there. A
//     shadow rule does not apply after an enforced rule of its family that matches.
//  4. Amount. The override for the key counts, else the one for the user, else the one for the tier, else
//     the rule's own amount.
//  5. Counter. The prefix is rule/<rule>/<limit>. The key has the parts that CountBy names. Neither contains
//     the amount or the tier, so a change of plan keeps what was used. A rule does not match a request that
//     lacks what it counts by, except for a header: see Rule.SkipWithoutHeader.
//  6. Errors. A Snapshot leaves a rule out that it cannot use, and Snapshot.Wrong names the rule. In a
//     Policy the rule stays as it was in the snapshot in force, if that has it.
//
// # How changes take effect
//
// A Policy keeps a Snapshot of a database up to date, and looks identities up. Rules and identities in
// memory hold while the database does not answer. Bans come before any look-up. If a look-up fails, some
// rules still hold: see Policy.Evaluate.
//
// A statement counts only if it sees all triggers of the policy: see readWhole.
//
// # Cost
//
// The index of a Snapshot files each rule under every value of one kind of condition: paths, hosts,
// networks or tiers. It takes the kind with the fewest other rules, so that Evaluate tries few of many
// selective rules. With Settings.Remember, a Snapshot also remembers by tier, method, host and path which
// rules match, and the verdict if all senders without an amount of their own get the same one: a search in
// the index takes long in the interpreter. Evaluate allocates nothing where counters are of users. Measure
// it:
//
//	go test -run xxx -bench Evaluate ./internal/plane/policy
//
// The package runs compiled and interpreted; internal/testkit/imports describes the rules for such code. In
// the interpreter, a call of a function also pays for each expression in it, executed or not. Therefore
// rare work has functions of its own.
//
// # Files
//
//   - rows.go: the rows of the database. verdict.go: facts of a request, and the verdict on it.
//   - policy.go: a Policy. lookup.go: looks up identities that are not cached, many in one statement.
//     identities.go: the cache.
//   - evaluate.go: Evaluate. Three passes make a verdict: match.go, the rules that match; select.go, those
//     of them that charge; charge.go, their amounts. index.go finds rules for match, and memo.go remembers
//     them, and whole verdicts. trace.go: why each rule applies or not.
//   - compile.go: compiles rules to a Snapshot. pattern.go, counter.go: patterns, and the keys of counters.
//     amount.go: overrides and billing periods. bans.go: bans.
//   - key.go: API keys. path.go: normal paths and hosts, and paths with parameters.
//   - refresh.go: the work in the background. It polls for changes (poll.go), reads the rules and bans that
//     changed (load.go has the statements, and read.go runs them), evicts the identities that changed, and
//     replaces the snapshot as a whole. migrate.go: the tables.
package policy
