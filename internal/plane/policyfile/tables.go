package policyfile

import (
	"fmt"
	"unicode/utf8"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// Column is a column of a table that the file has as a field.
type Column struct {
	Field string
	// Name is that of the column in the database.
	Name string
	Kind Kind
	// Default is the value of a field that a row of the file lacks, as the column has it. nil is NULL.
	Default any
	// Needed: each row of the file has the field.
	Needed bool
	// Key: the fields of a row that are keys together name it.
	Key bool
	// Late: the column names another row of its table, so that it is set when all rows are there.
	Late bool

	check func(text string) error
}

// Table is a table of the policy. Its rows are a section of the file, or, of limits, a list in each rule.
type Table struct {
	// Kind is what a row is.
	Kind string
	// Section is the name of the section or the list.
	Section string
	// Name is that of the table in the database.
	Name    string
	Columns []Column
	// Users: the table is in the file only on request.
	Users bool
	// Takes is what the database deletes with a row.
	Takes string
}

// The tables, in the order in which rows refer to rows of tables before.
const (
	Tiers = iota
	Users
	Keys
	Rules
	Limits
	Overrides
	tables
)

// Tables are all tables. A column that is not here is not about the policy, but about the row, such as
// created_at, and the counter of a rule, which is about rows of counters. A test names those.
var Tables = [tables]Table{
	Tiers: {Kind: "tier", Section: "tiers", Name: "rate_limit_tiers", Takes: "its overrides", Columns: []Column{
		{Field: "tier", Name: "tier", Needed: true, Key: true},
		{Field: "rank", Name: "rank", Kind: Whole, Default: "0"},
		{Field: "comment", Name: "comment"},
	}},
	Users: {Kind: "user", Section: "users", Name: "rate_limit_users", Users: true, Takes: "its keys and overrides", Columns: []Column{
		{Field: "user", Name: "user_id", Needed: true, Key: true},
		{Field: "tier", Name: "tier", Needed: true},
		{Field: "tier_until", Name: "tier_until", Kind: Moment, Default: never},
		{Field: "period_start", Name: "period_start", Kind: Day},
		{Field: "time_zone", Name: "time_zone", Default: "UTC"},
		{Field: "comment", Name: "comment"},
	}},
	Keys: {Kind: "key", Section: "keys", Name: "rate_limit_api_keys", Users: true, Takes: "its overrides and bans", Columns: []Column{
		{Field: "digest", Name: "digest", Kind: Digest, Needed: true, Key: true},
		{Field: "user", Name: "user_id", Needed: true},
		{Field: "tier", Name: "tier"},
		{Field: "hint", Name: "hint", check: checkHint},
		{Field: "name", Name: "name"},
		{Field: "expires_at", Name: "expires_at", Kind: Moment, Default: never},
		{Field: "revoked_at", Name: "revoked_at", Kind: Moment},
		{Field: "revoked_by", Name: "revoked_by"},
		{Field: "replaced_by", Name: "replaced_by", Kind: KeyDigest, Late: true},
	}},
	Rules: {Kind: "rule", Section: "rules", Name: "rate_limit_rules", Takes: "its limits and overrides", Columns: []Column{
		{Field: "name", Name: "name", Needed: true, Key: true},
		{Field: "comment", Name: "comment"},
		{Field: "family", Name: "family"},
		{Field: "priority", Name: "priority", Kind: Whole, Default: "100"},
		{Field: "mode", Name: "mode", Default: "enforce", check: func(text string) error { _, err := policy.ParseMode(text); return err }},
		{Field: "action", Name: "action", Default: actionLimit, check: func(text string) error { _, err := policy.ParseAction(text); return err }},
		{Field: "tiers", Name: "tiers", Kind: List},
		{Field: "hosts", Name: "hosts", Kind: List},
		{Field: "paths", Name: "paths", Kind: List},
		{Field: "methods", Name: "methods", Kind: List},
		{Field: "networks", Name: "networks", Kind: Networks},
		{Field: "count_by", Name: "count_by", Kind: List, Default: []string{"user"}},
		{Field: "without_header", Name: "without_header", Default: "share"},
		{Field: "valid", Name: "valid", Kind: Range, Default: always},
		{Field: "cost", Name: "cost", Kind: Whole, Default: "1"},
		{Field: "settle", Name: "settle", check: func(text string) error { _, err := policy.ParseSettle(text); return err }},
		{Field: "status", Name: "status", Kind: Small},
		{Field: "message", Name: "message"},
		{Field: "retry_after", Name: "retry_after", Kind: Duration},
		{Field: "ban_for", Name: "ban_for", Kind: Duration},
		{Field: "ban_after", Name: "ban_after", Kind: Whole},
		{Field: "ban_within", Name: "ban_within", Kind: Duration},
	}},
	Limits: {Kind: "limit", Section: "limits", Name: "rate_limit_rule_limits", Takes: "its overrides", Columns: []Column{
		{Field: "rule", Name: "rule", Needed: true, Key: true}, // that of the list
		{Field: "name", Name: "name", Needed: true, Key: true},
		{Field: "events", Name: "events", Kind: Amount, Needed: true},
		{Field: "per", Name: "per", Kind: Duration},
		{Field: "calendar", Name: "calendar"},
		{Field: "time_zone", Name: "time_zone"},
		{Field: "algorithm", Name: "algorithm", Default: "sliding_window", check: func(text string) error { _, err := ratelimit.ParseAlgorithm(text); return err }},
		{Field: "burst", Name: "burst", Kind: Whole},
		{Field: "durable", Name: "durable", Kind: Flag, Default: "false"},
		{Field: "on_exceed", Name: "on_exceed", Default: "refuse"},
	}},
	Overrides: {Kind: "override", Section: "overrides", Name: "rate_limit_overrides", Columns: []Column{
		{Field: "rule", Name: "rule", Needed: true, Key: true},
		{Field: "limit", Name: "limit_name", Needed: true, Key: true},
		{Field: "tier", Name: "tier", Key: true},
		{Field: "user", Name: "user_id", Key: true},
		{Field: "key", Name: "key_id", Kind: KeyDigest, Key: true},
		{Field: "events", Name: "events", Kind: Amount, Needed: true},
		{Field: "burst", Name: "burst", Kind: Whole},
		{Field: "valid", Name: "valid", Kind: Range, Default: always, Key: true},
		{Field: "reason", Name: "reason"},
	}},
}

// actionLimit is the action of rules with limits.
const actionLimit = "limit"

// checkHint refuses a hint that may be a whole key, before it is shown.
func checkHint(text string) error {
	const most = 16 // as the table has it
	if utf8.RuneCountInString(text) > most {
		return &ratelimit.FieldError{Field: "hint", Value: "…", Want: "the first characters of the key, 16 at most"}
	}
	return nil
}

// index is that of a field among the columns.
func (t *Table) index(field string) int {
	for i := range t.Columns {
		if t.Columns[i].Field == field {
			return i
		}
	}
	panic("the table of " + t.Section + " has no field " + field)
}

// Text is the value of a field of a row that is a text, or "".
func (t *Table) Text(r *Row, field string) string {
	text, _ := r.Values[t.index(field)].(string)
	return text
}

// digestShown is how much of a digest people see.
const digestShown = 12

// RowName is how people name a row.
func (t *Table) RowName(r *Row) string {
	switch t.Kind {
	case "key":
		return shortDigest(t.Text(r, "digest"))
	case "limit":
		return t.Text(r, "rule") + "/" + t.Text(r, "name")
	case "override":
		name := t.Text(r, "rule") + "/" + t.Text(r, "limit")
		for _, holder := range []string{"tier", "user", "key"} {
			if of := t.Text(r, holder); of != "" {
				name += " for " + holder + " " + shortDigest(of)
			}
		}
		if valid := t.Text(r, "valid"); valid != always {
			name += " " + valid
		}
		return name
	}
	return t.Text(r, t.Columns[0].Field)
}

// shortDigest shortens a digest, and leaves other names.
func shortDigest(name string) string {
	if isDigest(name) {
		return name[:digestShown] + "…"
	}
	return name
}

// About is an error about a row, with its line if it is of the file.
func (t *Table) About(r *Row, err error) error { return t.aboutLine(r.Line, r, err) }

func (t *Table) aboutLine(line int, r *Row, err error) error {
	name := fmt.Sprintf("%s %q", t.Kind, t.RowName(r))
	if line == 0 {
		return fmt.Errorf("%s: %w", name, err)
	}
	return fmt.Errorf("line %d: %s: %w", line, name, err)
}
