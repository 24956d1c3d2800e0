package policy

import (
	"sort"
	"sync"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Unusable is a rule or an override that cannot be used.
type Unusable struct {
	Rule string
	// Override is "" if the whole rule cannot be used. Otherwise it names the override that cannot be used,
	// such as "limit hour, tier free".
	Override string
	// Err names the invalid value and the allowed values.
	Err error
	// Kept reports whether the rule stays as it was in the previous Snapshot.
	Kept bool

	row *Rule // nil for an override
}

// Snapshot holds the rules, overrides, bans and prices of one moment. It is immutable and safe for concurrent
// use.
type Snapshot struct {
	set    *ruleSet
	bans   *banSet
	prices *priceList // nil without prices
	fault  error      // why this program can no longer use the tables, or nil
}

// Compile returns a snapshot. overrides are the overrides for tiers; overrides for users and keys belong to
// an Identity. The snapshot keeps the slices, which the caller must not change afterwards. memoSize is
// Settings.MemoSize.
func Compile(rules []Rule, overrides []Override, bans []Ban, memoSize int) *Snapshot {
	return &Snapshot{set: newRuleSet(rules, overrides, nil, memoSize), bans: newBanSet(bans, 0)}
}

// Unusable returns the rules and the overrides for tiers that cannot be used, sorted by rule. It must not be
// changed.
func (s *Snapshot) Unusable() []Unusable { return s.set.unusable }

// Rules returns the number of rules in use.
func (s *Snapshot) Rules() int { return len(s.set.rules) }

// ruleSet holds compiled rules with their limits. Its slices hold pointers, because an interpreted function
// allocates memory for each of its variables of a struct type.
type ruleSet struct {
	rules    []*rule           // in the order of evaluation
	tokens   *index            // the rules with limits of tokens, as for all senders
	limits   map[string]*limit // by prefix
	index    *index
	memo     *memo // nil if disabled
	unusable []Unusable
	off      []*Rule // rules with the mode off

	countingTokens int32 // the number of rules in tokens

	mu       sync.Mutex // guards anchored
	anchored map[anchorKey]*amount
}

// rule is a compiled Rule.
type rule struct {
	row         Rule // with methods in upper case, and normal networks
	position    int  // in ruleSet.rules
	terms       *Terms
	until       int64    // row.Until, or noEnd
	methods     []string // row.Methods, with HEAD if a rule that restricts has GET
	hosts       []string // normal forms; see parseHost
	paths       []*pathPattern
	folded      []*pathPattern // the paths in lower case
	endpoint    string         // the paths, joined by spaces
	dynamic     bool           // the rule has conditions on time or networks, which the memo cannot store
	countBy     counterBy
	needsSender bool // the rule does not apply to a sender that could not be looked up
	limits      []*limit
	tokens      bool // one of limits counts tokens
}

// prefixOf returns the prefix of a limit of a rule.
func prefixOf(rule, limit string) string { return option.RulePrefix + rule + "/" + limit }

// newRuleSet compiles rules. before has the rules of the snapshot in force. If a rule cannot be used,
// newRuleSet compiles the rule in before that counts by the same name instead.
func newRuleSet(rows []Rule, overrides []Override, before []*rule, memoSize int) *ruleSet {
	set := &ruleSet{limits: map[string]*limit{}, anchored: map[anchorKey]*amount{}}
	if memoSize > 0 {
		set.memo = &memo{capacity: memoSize, matches: map[combination]*matches{}}
	}
	for i := range rows {
		row := &rows[i]
		if row.Mode == option.Off {
			set.off = append(set.off, row)
			continue
		}
		r, err := compileRule(row)
		if err != nil {
			wrong := Unusable{Rule: row.Name, Err: err, row: row}
			for _, old := range before {
				if CountsAs(old.row.Name, old.row.CountedAs) == CountsAs(row.Name, row.CountedAs) {
					r, _ = compileRule(&old.row) // a copy, since this set writes into its rules
					wrong.Kept = true
				}
			}
			set.unusable = append(set.unusable, wrong)
		}
		if r != nil {
			set.rules = append(set.rules, r)
		}
	}
	rules := set.rules
	sort.SliceStable(rules, func(i, j int) bool { return isBefore(&rules[i].row, &rules[j].row) })
	var tokens []*rule
	for position, r := range rules {
		r.position = position
		if r.tokens {
			tokens = append(tokens, forAllSenders(r))
			set.countingTokens++
		}
		for _, l := range r.limits {
			set.limits[l.row.Limit.Prefix] = l
		}
	}
	tiers := map[*limit][]*amount{}
	for i := range overrides {
		o := &overrides[i]
		if err := set.addOverride(tiers, o); err != nil {
			override := "limit " + o.Limit + ", tier " + o.Tier
			set.unusable = append(set.unusable, Unusable{Rule: o.Rule, Override: override, Err: err})
		}
	}
	for l, amounts := range tiers {
		l.tiers = amounts
	}
	wrong := set.unusable
	sort.SliceStable(wrong, func(i, j int) bool { return wrong[i].Rule < wrong[j].Rule })
	set.index = newIndex(set.rules)
	set.tokens = newIndex(tokens)
	return set
}

// actionOrder ranks the actions in the order of evaluation.
var actionOrder = map[Action]int{ActionExempt: 0, ActionBlock: 1, ActionLimit: 2}

func isBefore(a, b *Rule) bool {
	switch {
	case a.Action != b.Action:
		return actionOrder[a.Action] < actionOrder[b.Action]
	case a.Priority != b.Priority:
		return a.Priority > b.Priority
	}
	return a.Name < b.Name
}

// compileRule compiles one rule. The error explains why the rule cannot be used.
func compileRule(row *Rule) (*rule, error) {
	r := &rule{row: *row, until: endOf(row.Until)}
	if row.Action == "" {
		r.row.Action = ActionLimit
	}
	if row.Cost == 0 {
		r.row.Cost = 1
	}
	err := row.Err
	if err == nil {
		err = r.check()
	}
	if err == nil {
		err = r.compileConditions()
	}
	if err != nil {
		return nil, err
	}
	if r.countBy, err = parseCountBy(row); err != nil {
		return nil, err
	}
	r.needsSender = len(row.Tiers) > 0 ||
		r.row.Action == ActionLimit && (r.countBy.usesSender || row.Family != "")
	r.terms = &Terms{
		Rule: row.Name, Shadow: row.Mode == option.Shadow, AmountSource: "rule", Status: row.Status,
		Message: row.Message, RetryAfter: row.RetryAfter,
	}
	switch {
	case row.Action == ActionExempt:
		r.terms.Status = 0 // it refuses nothing
	case row.Status == 0 && row.Action == ActionBlock:
		r.terms.Status = 403
	case row.Status == 0:
		r.terms.Status = 429
	}
	if r.terms.CostSource, err = option.ParseCostSource(row.Settle); err != nil {
		return nil, err
	}
	if r.limits, err = r.compileLimits(); err != nil {
		return nil, err
	}
	return r, nil
}

// check returns an error for values that constraints and triggers cannot exclude: an action or a mode of a
// later version, and missing limits after a restore.
func (r *rule) check() error {
	row := &r.row
	_, isKnown := actionOrder[row.Action]
	switch {
	case !isKnown:
		return option.Invalid("action", string(row.Action), "one of limit, block, exempt")
	case row.Mode != option.Enforce && row.Mode != option.Shadow && row.Mode != "":
		return option.Invalid("mode", string(row.Mode), "one of enforce, shadow, off")
	case row.Action == ActionLimit && len(row.Limits) == 0:
		return option.Invalid("limits", "", "at least one limit, or another action")
	}
	return nil
}

// compileLimits compiles the limits of a rule.
func (r *rule) compileLimits() ([]*limit, error) {
	var compiled []*limit
	for i := range r.row.Limits {
		l := &limit{rule: r, row: r.row.Limits[i]}
		l.row.Limit.Prefix = prefixOf(r.row.Name, l.row.Name)
		counted := prefixOf(CountsAs(r.row.Name, r.row.CountedAs),
			CountsAs(l.row.Name, l.row.Limit.CountedAs))
		l.row.Limit.CountedAs = ""
		if counted != l.row.Limit.Prefix {
			l.row.Limit.CountedAs = counted
		}
		var err error
		if l.tokens, err = option.TokensOf(l.row.Unit, l.row.Output, l.row.Batches,
			&l.row.Limit); err != nil {
			return nil, err
		}
		if l.tokens != nil {
			r.tokens = true
			l.row.Limit.Reserves = true
			l.row.Limit.Unit = string(l.row.Unit)
			l.row.Limit.SynchronousCommit = l.row.Limit.Durable
		}
		calendar := l.row.Limit.Calendar
		l.periodic = r.countBy.perSender && (calendar == ratelimit.Month || calendar == ratelimit.Year)
		l.own, err = newAmount(l, &Override{Events: l.row.Limit.Events, Unlimited: l.row.Unlimited})
		if err != nil {
			return nil, err
		}
		compiled = append(compiled, l)
	}
	return compiled, nil
}
