package policy

import (
	"net/netip"
	"sort"
	"sync"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Wrong is a rule or an override that cannot be used.
type Wrong struct {
	Rule string
	// Override is "" if the whole rule is not used. Otherwise it names the override that is not
	// used, and the rest of the rule is used: "limit hour, tier free".
	Override string
	// Err says what is wrong, and what it should be.
	Err error
	// Kept is true if the rule stays as it was in the Snapshot before.
	Kept bool
}

// Snapshot is rules, overrides and bans at one moment. It does not change, and any number of
// goroutines may use it.
type Snapshot struct {
	set  *ruleSet
	bans *banSet
}

// Compile makes a snapshot. overrides are those for tiers; those for users and keys belong to
// identities. The snapshot keeps the lists, which must not change afterwards. remember is as in Settings.
func Compile(rules []Rule, overrides []Override, bans []Ban, remember int) *Snapshot {
	return &Snapshot{set: newRuleSet(rules, overrides, nil, remember), bans: newBanSet(bans)}
}

// Wrong returns the rules that cannot be used, and the overrides for tiers that are not used, in
// the order of their names.
func (s *Snapshot) Wrong() []Wrong { return append([]Wrong(nil), s.set.wrong...) }

// Rules returns how many rules have an effect.
func (s *Snapshot) Rules() int { return len(s.set.rules) }

// ruleSet is rules with their limits, compiled. Its slices hold pointers: in the interpreter a
// function that has an element of a slice pays for memory of the element's size.
type ruleSet struct {
	rules  []*rule           // in the order in which they are tried
	limits map[string]*limit // by prefix
	index  *index
	memo   *memo // nil without
	wrong  []Wrong

	mu       sync.Mutex // guards anchored
	anchored map[anchorKey]*amount
}

// rule is a rule, compiled.
type rule struct {
	row         Rule
	place       int // in ruleSet.rules
	mark        *Mark
	from, until int64
	hosts       []*hostPattern
	paths       []*pathPattern
	endpoint    string // the paths as one text
	networks    []netip.Prefix
	sometimes   bool // it has conditions that the memo does not remember: see holds
	by          counterBy
	personal    bool // it does not apply to a sender that could not be looked up
	limits      []*limit
}

// prefixOf returns the prefix of the counters of a limit.
func prefixOf(rule, limit string) string { return "rule/" + rule + "/" + limit }

// newRuleSet compiles rules, and in place of one that cannot be used the rule of that name in before.
func newRuleSet(rows []Rule, overrides []Override, before []*rule, remember int) *ruleSet {
	set := &ruleSet{limits: make(map[string]*limit), anchored: make(map[anchorKey]*amount)}
	if remember > 0 {
		set.memo = newMemo(remember)
	}
	for i := range rows {
		row := &rows[i]
		if row.Mode == settings.Off {
			continue
		}
		r, err := compileRule(row)
		if err != nil {
			wrong := Wrong{Rule: row.Name, Err: err}
			for _, last := range before {
				if last.row.Name == row.Name {
					r, _ = compileRule(&last.row) // a copy, since this set writes into its rules
					wrong.Kept = true
				}
			}
			set.wrong = append(set.wrong, wrong)
		}
		if r != nil {
			set.rules = append(set.rules, r)
		}
	}
	rules := set.rules
	sort.SliceStable(rules, func(i, j int) bool { return isBefore(&rules[i].row, &rules[j].row) })
	for place, r := range rules {
		r.place = place
		for _, l := range r.limits {
			set.limits[l.row.Limit.Prefix] = l
		}
	}
	for i := range overrides {
		set.addTierOverride(&overrides[i])
	}
	wrong := set.wrong
	sort.SliceStable(wrong, func(i, j int) bool { return wrong[i].Rule < wrong[j].Rule })
	set.index = newIndex(set.rules)
	return set
}

// tried has the actions in the order in which rules are tried.
var tried = map[Action]int{Exempt: 0, Block: 1, Charge: 2}

func isBefore(a, b *Rule) bool {
	switch {
	case a.Action != b.Action:
		return tried[a.Action] < tried[b.Action]
	case a.Priority != b.Priority:
		return a.Priority > b.Priority
	}
	return a.Name < b.Name
}

// compileRule compiles a rule by itself, or returns what is wrong with it.
func compileRule(row *Rule) (*rule, error) {
	r := &rule{row: *row, from: beginOf(row.From), until: endOf(row.Until)}
	if row.Action == "" {
		r.row.Action = Charge
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
	if r.by, err = parseCountBy(row); err != nil {
		return nil, err
	}
	r.personal = len(row.Tiers) > 0 || r.row.Action == Charge && (r.by.sender || row.Family != "")
	r.mark = &Mark{
		Rule: row.Name, Shadow: row.Mode == settings.Shadow, From: "rule", Status: row.Status,
		Message: row.Message, RetryAfter: row.RetryAfter,
	}
	switch {
	case row.Action == Exempt:
		r.mark.Status = 0 // it refuses nothing
	case row.Status == 0 && row.Action == Block:
		r.mark.Status = 403
	case row.Status == 0:
		r.mark.Status = 429
	}
	if r.mark.Settle, err = settings.ParseSettle(row.Settle); err != nil {
		return nil, err
	}
	if r.limits, err = r.compileLimits(); err != nil {
		return nil, err
	}
	return r, nil
}

// check returns what constraints and triggers of the tables do not ensure: an action or a mode may be of a
// later version, and limits may be missing after a restore.
func (r *rule) check() error {
	row := &r.row
	_, isKnown := tried[row.Action]
	switch {
	case !isKnown:
		want := "one of limit, block, exempt"
		return &ratelimit.FieldError{Field: "action", Value: string(row.Action), Want: want}
	case row.Mode != settings.Enforce && row.Mode != settings.Shadow && row.Mode != "":
		want := "one of enforce, shadow, off"
		return &ratelimit.FieldError{Field: "mode", Value: string(row.Mode), Want: want}
	case row.Action == Charge && len(row.Limits) == 0:
		return &ratelimit.FieldError{Field: "limits", Want: "at least one limit, or another action"}
	}
	return nil
}

// compileLimits compiles the limits of a rule.
func (r *rule) compileLimits() ([]*limit, error) {
	var compiled []*limit
	for i := range r.row.Limits {
		row := r.row.Limits[i]
		row.Limit.Prefix = prefixOf(r.row.Name, row.Name)
		own, err := newAmount(r.mark, &row, row.Limit.Events, 0, row.Unlimited, "rule")
		if err != nil {
			return nil, err
		}
		calendar := row.Limit.Calendar
		periodic := r.by.person && (calendar == ratelimit.Month || calendar == ratelimit.Year)
		compiled = append(compiled, &limit{of: &r.row, mark: r.mark, row: row, own: own, periodic: periodic})
	}
	return compiled, nil
}

// addTierOverride adds an override for a tier to its limit, unless that has none, because its rule is
// disabled for example.
func (set *ruleSet) addTierOverride(o *Override) {
	l := set.limits[prefixOf(o.Rule, o.Limit)]
	if l == nil {
		return
	}
	choices, err := addChoice(l.tiers, l, o, "tier")
	if err == nil && o.Tier == "" {
		want := "a tier: overrides for users and keys belong to identities"
		err = &ratelimit.FieldError{Field: "tier", Want: want}
	}
	if err != nil {
		of := "limit " + o.Limit + ", tier " + o.Tier
		set.wrong = append(set.wrong, Wrong{Rule: o.Rule, Override: of, Err: err})
		return
	}
	l.tiers = choices
}
