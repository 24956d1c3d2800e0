// Package policy decides which limits apply to a request, from rows of a database: tiers, users, API keys,
// rules with their limits, overrides and bans.
//
// A Snapshot holds the compiled rules and bans of one moment. EvaluateIdentity turns the Facts of a request
// and the Identity of its sender into a Verdict: refused, exempt, or a list of hits that a ratelimit.Store
// takes. It does no I/O and reads no clock. A Policy keeps the current Snapshot of a database, and caches the
// identities that it looks up: Policy.Evaluate finds the Identity first.
//
// Three invariants hold:
//
//   - A Snapshot, an Identity and a Mark never change. A change in the database leads to a new Snapshot.
//   - A Policy applies no partial read: see readWhole.
//   - A cached Identity is not older than the last poll that reported its change: see IdentityCache.
//
// # How the rules are evaluated
//
//  1. Identity. A request with an API key belongs to the key's user, and has the key's own tier, or else the
//     user's. A request without a key belongs to the user that the proxy authenticated. A request without
//     a key and a user is anonymous: its tier is Facts.DefaultTier, and a rule that counts by user counts its
//     network instead.
//  2. Order. Bans come first, then exempt rules, block rules and limits. Within each, the rule with the
//     higher priority comes first; rules of equal priority are in the order of their names.
//  3. Families. Of the rules with limits of one family, only the first that matches applies. A rule without a
//     family applies whenever it matches. The rules after a shadow rule apply as if it were not there. A
//     shadow rule does not apply after an enforced rule of its family that matches.
//  4. Amount. The override for the key applies, else the one for the user, else the one for the tier, else
//     the rule's own amount.
//  5. Counter. The prefix is rule/<rule>/<limit>, with Rule.CountedAs for <rule> if the rule was renamed. The
//     key has the parts that CountBy names. A change of plan keeps the counts, because the key does not
//     contain the amount, and contains the tier only if CountBy names it. If a request lacks a value that a
//     rule counts by, the rule does not match; for a header, see Rule.WithoutHeader.
//  6. Errors. A Snapshot leaves out a rule that it cannot use, and Snapshot.Unusable names the rule. A Policy
//     keeps using the rule from the snapshot in force, if that snapshot has it.
//
// # How changes take effect
//
// A background poll finds the changed rows. The Policy then evicts the changed identities, reads changed
// rules and bans again, and replaces the snapshot. During an outage, the rules and identities in memory stay
// in force. Bans are checked before any look-up. If a look-up fails, some rules still apply: see
// Policy.Evaluate.
//
// # Cost
//
// The index of a Snapshot files each rule under every value of one kind of condition: paths, hosts, networks
// or tiers. For each kind, it counts how many rules have the rule's most common value, and uses the kind with
// the smallest count, so a search tries only a few rules even if there are many. With Settings.MemoSize, a
// Snapshot also has a memo. For a tier, method, host and path the memo holds the rules that match. Most
// senders have no override. If all these get the same verdict, the memo also holds that verdict. The memo
// saves searches of the index, which are slow in the interpreter. An evaluation allocates no memory if all
// rules count by user and none is for networks.
//
// The package runs compiled and interpreted; internal/testkit/imports describes the rules for such code. In
// the interpreter, the cost of a call grows with the number of expressions in the function, executed or not.
// Therefore rare work has functions of its own.
package policy
