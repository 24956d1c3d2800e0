package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// A setting of a row of the policy is an argument of the function that changes the row: the catalog has its name and its
// type. A setting limit.NAME of a rule is an element of the argument limits. A setting RULE/LIMIT of a user or a key, or
// RULE/LIMIT.burst, is an override.

// The functions that Set calls.
const (
	SetTier = "rate_limit_tier"
	SetUser = "rate_limit_user"
	SetKey  = "rate_limit_key"
	SetRule = "rate_limit_rule"
)

// holders are the arguments of rate_limit_override that name whom Set changes.
var holders = map[string]string{SetUser: "user_id", SetKey: "key_id"}

const (
	limitPrefix = "limit."
	burstSuffix = ".burst"
)

// argument is an argument of a function.
type argument struct{ Name, Type string }

const argumentsSQL = `SELECT a.name, format_type(a.type, NULL) FROM pg_proc p
	CROSS JOIN LATERAL unnest(p.proargnames, p.proargtypes::oid[]) WITH ORDINALITY AS a(name, type, place)
WHERE p.oid = $1::text::regproc ORDER BY a.place`

// assignment is name=value. An empty value takes the setting back.
type assignment struct{ name, value string }

// parseAssignments splits texts of the form name=value. known are the names that are allowed;
// isKnown allows others.
func parseAssignments(texts, known []string, isKnown func(name string) bool) ([]assignment, error) {
	var all []assignment
	seen := map[string]bool{}
	for _, text := range texts {
		name, value, found := strings.Cut(text, "=")
		if !found {
			return nil, fmt.Errorf("%q: must be name=value, where the name is one of %s", text, strings.Join(known, ", "))
		}
		if !isKnown(name) && !slices.Contains(known, name) {
			return nil, fmt.Errorf("%s: unknown: must be one of %s", name, strings.Join(known, ", "))
		}
		if seen[name] {
			return nil, fmt.Errorf("%s: must be given once; lists have commas, as in paths=/a/*,/b", name)
		}
		seen[name] = true
		all = append(all, assignment{name, value})
	}
	if len(all) == 0 {
		return nil, errors.New("nothing to set: give one or more of " + strings.Join(known, ", ") + ", each as name=value")
	}
	return all, nil
}

// isLimit reports whether a setting is a limit of any window.
func isLimit(name string) bool {
	return strings.HasPrefix(name, limitPrefix) && len(name) > len(limitPrefix)
}

// Set makes a row of the policy, or changes one, in one transaction: the settings that are named, each as name=value. An
// empty value takes a setting back to its default, and deletes a limit or an override. function is SetTier, SetUser, SetKey
// or SetRule. An amount of 0, which lets nothing pass, needs force. Set returns created or changed.
func (d *Database) Set(ctx context.Context, function string, id any, texts []string, force bool) (outcome string, err error) {
	err = d.together(ctx, func(w *work) {
		if function != SetRule {
			outcome = w.set(function, id, texts, true)
			return
		}
		w.stillUsable(ofRule(id), func(w *work) {
			outcome = w.set(function, id, texts, force)
			w.execute("SET CONSTRAINTS ALL IMMEDIATE") // what waits for the end of the transaction is checked now
		})
	})
	return outcome, err
}

// ofRule returns what is wrong with a rule of this name.
func ofRule(name any) func(policy.Wrong) error {
	return func(wrong policy.Wrong) error {
		if wrong.Rule == name {
			return wrong.Err
		}
		return nil
	}
}

// set calls a function, and those of the overrides.
func (w *work) set(function string, id any, texts []string, force bool) string {
	arguments := list[argument](w, argumentsSQL, function)
	if w.err != nil {
		return ""
	}
	var known, reset, limits []string
	types := map[string]string{}
	for _, a := range arguments[1:] {
		if types[a.Name] = a.Type; a.Name != "reset" && a.Name != "limits" {
			known = append(known, a.Name)
		}
	}
	isOther := isLimit
	switch {
	case function == SetRule:
		known = append(known, limitPrefix+"NAME")
	case holders[function] != "":
		known = append(known, "RULE/LIMIT", "RULE/LIMIT"+burstSuffix)
		isOther = func(name string) bool { return strings.Contains(name, "/") }
	default:
		isOther = func(string) bool { return false }
	}
	assignments, err := parseAssignments(texts, known, isOther)
	if err != nil && (len(texts) > 0 || function != SetTier) { // a new tier needs no setting
		w.fail(err)
	}
	now, err := w.Now(w.ctx)
	w.fail(err)
	call, values := "SELECT "+function+"($1::"+arguments[0].Type, []any{id}
	add := func(name, kind string, value any) {
		values = append(values, value)
		text := "text"
		if _, isList := value.([]string); isList {
			text = "text[]"
		}
		call += fmt.Sprintf(", %s => $%d::%s::%s", pgx.Identifier{name}.Sanitize(), len(values), text, kind)
	}
	for _, a := range assignments {
		window, isAmount := windows[a.name]
		amount, _, _ := strings.Cut(a.value, "/")
		switch {
		case (isAmount || isLimit(a.name)) && strings.Trim(amount, "0 ") == "" && amount != "" && !force:
			w.fail(&ratelimit.FieldError{Field: a.name, Value: a.value,
				Want: "above 0, or given with --force: it would refuse every request, which action=block says"})
		case isLimit(a.name) && function == SetRule:
			limits = append(limits, a.name[len(limitPrefix):]+"="+a.value)
		case isOther(a.name):
		case a.value == "":
			reset = append(reset, a.name)
		case isAmount && a.value == "unlimited":
			limits = append(limits, a.name+"="+a.value+"/"+window)
		default:
			kind := types[a.name]
			if isAmount {
				kind = "amount"
			}
			value, err := readValue(kind, a.name, a.value, now)
			w.fail(err)
			add(a.name, types[a.name], value)
		}
	}
	if limits != nil {
		add("limits", "text[]", limits)
	}
	if reset != nil {
		add("reset", "text[]", reset)
	}
	outcome := strings.Join(some[string](w, call+")", values...), "")
	for _, a := range assignments {
		if holder := holders[function]; holder != "" && isOther(a.name) {
			w.setOverride(holder, fmt.Sprint(id), a, now)
		}
	}
	return outcome
}

// windows are those of the amounts that are named by them.
var windows = map[string]string{
	"per_second": "1s", "per_minute": "1m", "per_hour": "1h", "per_day": "1d", "per_month": "1mo calendar", "in_flight": "in_flight",
}

// setOverride sets or deletes the amount of an override, or sets its burst or takes that back. holder is the argument that
// names whose it is.
func (w *work) setOverride(holder, id string, a assignment, now time.Time) {
	limit, isBurst := strings.CutSuffix(a.name, burstSuffix)
	rule, name, _ := strings.Cut(limit, "/")
	whose := holder + " => $3::text::" + map[string]string{"user_id": "text", "key_id": "bigint"}[holder]
	switch {
	case a.value == "" && isBurst:
		w.execute("SELECT rate_limit_override($1, $2, "+whose+", reset => '{burst}')", rule, name, id)
	case a.value == "":
		found := some[bool](w, "SELECT rate_limit_delete_override($1, $2, "+whose+")", rule, name, id)
		if w.err == nil && !found[0] && w.lacks("SELECT true FROM rate_limit_rule_limits WHERE rule = $1 AND name = $2", rule, name) {
			w.fail(w.missing(w.ctx, "limit", limit))
		}
	case isBurst:
		_, err := readValue("bigint", a.name, a.value, now)
		w.fail(err)
		w.execute("SELECT rate_limit_override($1, $2, "+whose+", burst => $4::text::bigint)", rule, name, id, a.value)
	default:
		w.execute("SELECT rate_limit_override($1, $2, amount => $4::text, "+whose+")", rule, name, id, a.value)
	}
}

// readValue reads the text of an argument of a type, and returns it as the server reads it: a string, or of an array a
// []string. Lists have commas. A duration in place of a time begins now. The error is a *ratelimit.FieldError.
func readValue(kind, field, text string, now time.Time) (any, error) {
	value, want := text, ""
	if !utf8.ValidString(text) || strings.Contains(text, "\x00") {
		return nil, &ratelimit.FieldError{Field: field, Value: text, Want: "a text in UTF-8 without a zero byte"}
	}
	switch kind {
	case "bigint", "integer", "amount":
		if _, err := strconv.ParseInt(text, 10, 64); err != nil {
			want = "a whole number" + map[bool]string{true: ", or unlimited"}[kind == "amount"]
		}
	case "boolean":
		if text != "true" && text != "false" {
			want = "true or false"
		}
	case "date":
		if _, err := time.Parse(time.DateOnly, text); err != nil {
			want = "a day such as 2026-11-27"
		}
	case "interval": // without days, because their lengths vary
		lasts, err := ratelimit.ParseWindow(text)
		if err == nil {
			return intervalOf(lasts), nil
		}
		want = "a duration such as 30s, 5m, 1h or 1d"
	case "timestamp with time zone":
		until, err := ParseUntil(field, text, now)
		return timeOrInfinity(until), err
	case "tstzrange":
		from, until, found := strings.Cut(text, "..")
		begin, hasBegin := readTime(from)
		end, hasEnd := readTime(until)
		if !found || from != "" && !hasBegin || until != "" && !hasEnd || hasBegin && hasEnd && !begin.Before(end) {
			want = "FROM..UNTIL, where either may be missing, a time is such as 2026-11-27 or 2026-11-27T18:00:00Z, and the end is after the begin"
		}
		value = "[" + from + "," + until + ")"
	case "text[]", "cidr[]":
		items, err := parseList(field, text)
		for i := 0; err == nil && kind == "cidr[]" && i < len(items); i++ {
			network, wrong := ParseNetwork(field, items[i])
			items[i], err = network.String(), wrong
		}
		return items, err
	}
	if want != "" {
		return nil, &ratelimit.FieldError{Field: field, Value: text, Want: want}
	}
	return value, nil
}

// stillUsable runs commands that change rules. It fails if proxies could then not use one of these
// rules, for which own returns an error, or another rule that they can use now.
func (w *work) stillUsable(own func(policy.Wrong) error, commands func(w *work)) {
	was := map[string]bool{}
	for _, wrong := range w.wrongRules() {
		was[wrong.Rule] = was[wrong.Rule] || wrong.Override == ""
	}
	commands(w)
	for _, wrong := range w.wrongRules() {
		if wrong.Override != "" {
			continue
		}
		w.fail(own(wrong))
		if !was[wrong.Rule] {
			w.fail(fmt.Errorf("the rule %q could no longer be used: %w", wrong.Rule, wrong.Err))
		}
	}
}

// wrongRules says which rules and overrides proxies cannot use, and why: by compiling them as proxies do.
func (w *work) wrongRules() []policy.Wrong {
	rules, overrides, err := policy.DecodeRules(some[string](w, policy.RulesSQL()))
	w.fail(err)
	return policy.Compile(rules, overrides, nil, policyOptions).Wrong()
}
