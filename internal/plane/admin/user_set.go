package admin

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// userSettings are the columns of a user that SetUser sets, with their types.
var userSettings = []struct{ name, kind, help string }{
	{"tier", "text", "the tier of the user"},
	{"tier_until", "timestamptz", "when the tier ends: 90d, 2026-12-31 or never"},
	{"period_start", "date", "a day on which a billing period begins"},
	{"time_zone", "text", "the zone of the billing periods, as in Europe/Berlin"},
	{"comment", "text", "for people"},
}

// UserSettings are the settings that SetUser knows.
func UserSettings() []Setting {
	var all []Setting
	for _, s := range userSettings {
		all = append(all, Setting{s.name, s.help})
	}
	return append(all, Setting{"RULE/LIMIT", "another amount of a limit for this user: a number or unlimited"})
}

// SetUser makes a user, or changes the settings that are named, each as name=value. An empty
// value takes a setting back to its default, and deletes an override. It reports whether the
// user is new.
func (d *Database) SetUser(ctx context.Context, name string, texts []string) (isNew bool, err error) {
	assignments, err := parseAssignments(texts, settingNames(UserSettings()), func(name string) bool { return strings.Contains(name, "/") })
	if err != nil {
		return false, err
	}
	now, err := d.Now(ctx)
	if err != nil {
		return false, err
	}
	columns, args, overrides, err := userColumns(assignments, now)
	if err != nil {
		return false, err
	}
	defer func() { err = withValue(err, texts) }()
	err = d.together(ctx, func() error {
		exists, err := values[bool](ctx, d, "SELECT true FROM rate_limit_users WHERE user_id = $1 FOR UPDATE", name)
		if err != nil {
			return err
		}
		if isNew, err = d.writeUser(ctx, name, len(exists) == 0, columns, args); err != nil {
			return err
		}
		for _, a := range overrides {
			if err := d.setOverride(ctx, name, a); err != nil {
				return err
			}
		}
		return nil
	})
	return isNew, err
}

// userColumn is a column and the SQL of its new value, with %d for the number of its parameter.
type userColumn struct{ name, sql string }

// userColumns splits assignments into columns and overrides. args has one argument for each
// column, except for columns that go back to their defaults.
func userColumns(assignments []assignment, now time.Time) (columns []userColumn, args []any, overrides []assignment, err error) {
	for _, a := range assignments {
		if strings.Contains(a.name, "/") {
			overrides = append(overrides, a)
			continue
		}
		for _, s := range userSettings {
			if s.name != a.name {
				continue
			}
			if a.value == "" {
				if s.name == "tier" {
					return nil, nil, nil, &ratelimit.FieldError{Field: "tier", Want: "the name of a tier"}
				}
				columns = append(columns, userColumn{s.name, "DEFAULT"})
				continue
			}
			value := any(a.value)
			switch s.kind {
			case "timestamptz":
				until, err := ParseUntil(s.name, a.value, now)
				if err != nil {
					return nil, nil, nil, err
				}
				value = timeOrInfinity(until)
			case "date":
				if _, err := time.Parse(time.DateOnly, a.value); err != nil {
					return nil, nil, nil, &ratelimit.FieldError{Field: s.name, Value: a.value, Want: "a day such as 2026-01-31"}
				}
			}
			args = append(args, value)
			columns = append(columns, userColumn{s.name, fmt.Sprintf("$%d::%s", len(args)+1, s.kind)})
		}
	}
	return columns, args, overrides, nil
}

// timeOrInfinity is a time as Postgres reads it. The zero time is infinity.
func timeOrInfinity(t time.Time) string {
	if t.IsZero() {
		return "infinity"
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// writeUser makes a user, or changes columns of one. It reports whether it made the user.
func (d *Database) writeUser(ctx context.Context, name string, isNew bool, columns []userColumn, args []any) (made bool, err error) {
	var names, sqls []string
	hasTier := false
	for _, c := range columns {
		names = append(names, c.name)
		sqls = append(sqls, c.sql)
		hasTier = hasTier || c.name == "tier"
	}
	args = append([]any{name}, args...)
	if isNew && !hasTier {
		tiers, err := d.Tiers(ctx)
		if err != nil {
			return false, err
		}
		return false, &ratelimit.FieldError{Field: "tier", Want: "given for a new user, one of " + strings.Join(tiers, ", ")}
	}
	if isNew {
		made, err := d.execute(ctx, "INSERT INTO rate_limit_users (user_id, "+strings.Join(names, ", ")+") VALUES ($1, "+strings.Join(sqls, ", ")+") ON CONFLICT (user_id) DO NOTHING", args...)
		if err != nil || made > 0 {
			return made > 0, err
		}
		// Another command has made the user meanwhile.
	}
	if len(columns) == 0 {
		return false, nil
	}
	for i := range sqls {
		sqls[i] = names[i] + " = " + sqls[i]
	}
	_, err = d.execute(ctx, "UPDATE rate_limit_users SET "+strings.Join(sqls, ", ")+" WHERE user_id = $1", args...)
	return false, err
}

// setOverride makes, changes or deletes the override of a user that is always valid.
func (d *Database) setOverride(ctx context.Context, user string, a assignment) error {
	rule, limit, _ := strings.Cut(a.name, "/")
	if a.value == "" {
		_, err := d.execute(ctx, "DELETE FROM rate_limit_overrides WHERE rule = $1 AND limit_name = $2 AND user_id = $3 AND valid = '(,)'", rule, limit, user)
		return err
	}
	events, err := parseAmount(a.name, a.value)
	if err != nil {
		return err
	}
	// The row of the user is locked, so that two commands do not both insert.
	changed, err := d.execute(ctx, "UPDATE rate_limit_overrides SET events = $4 WHERE rule = $1 AND limit_name = $2 AND user_id = $3 AND valid = '(,)'", rule, limit, user, events)
	if err != nil || changed > 0 {
		return err
	}
	_, err = d.execute(ctx, "INSERT INTO rate_limit_overrides (rule, limit_name, user_id, events) VALUES ($1, $2, $3, $4)", rule, limit, user, events)
	return err
}
