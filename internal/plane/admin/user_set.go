package admin

import (
	"context"
	"fmt"
	"slices"
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
	change, err := parseUserChange(assignments, now)
	if err != nil {
		return false, err
	}
	defer func() { err = withValue(err, texts) }()
	err = d.together(ctx, func() error {
		exists, err := value[bool](ctx, d, "SELECT true FROM rate_limit_users WHERE user_id = $1 FOR UPDATE", name)
		if err != nil {
			return err
		}
		if exists == nil {
			if isNew, err = d.insertUser(ctx, name, &change); err != nil {
				return err
			}
		}
		// Another command may have made the user meanwhile.
		if !isNew && len(change.columns) > 0 {
			sql := "UPDATE rate_limit_users SET (" + strings.Join(change.columns, ", ") + ") = ROW(" + strings.Join(change.values, ", ") + ") WHERE user_id = $1"
			if _, err := d.execute(ctx, sql, append([]any{name}, change.args...)...); err != nil {
				return err
			}
		}
		for _, a := range change.overrides {
			if err := d.setOverride(ctx, name, a); err != nil {
				return err
			}
		}
		return nil
	})
	return isNew, err
}

// userChange is what SetUser is asked for.
type userChange struct {
	columns, values []string // values is the SQL of each column's value: a parameter, or DEFAULT
	args            []any    // the parameters from $2 on
	overrides       []assignment
}

func parseUserChange(assignments []assignment, now time.Time) (userChange, error) {
	var change userChange
	for _, a := range assignments {
		if strings.Contains(a.name, "/") {
			change.overrides = append(change.overrides, a)
			continue
		}
		for _, s := range userSettings {
			if s.name != a.name {
				continue
			}
			sql := "DEFAULT"
			if a.value != "" {
				arg, err := parameter(s.name, s.kind, a.value, now)
				if err != nil {
					return change, err
				}
				change.args = append(change.args, arg)
				sql = fmt.Sprintf("$%d::%s", len(change.args)+1, s.kind)
			} else if s.name == "tier" {
				return change, &ratelimit.FieldError{Field: "tier", Want: "the name of a tier"}
			}
			change.columns = append(change.columns, s.name)
			change.values = append(change.values, sql)
		}
	}
	return change, nil
}

// parameter is the value of a setting of a user as Postgres reads it.
func parameter(name, kind, text string, now time.Time) (string, error) {
	switch kind {
	case "timestamptz":
		until, err := ParseUntil(name, text, now)
		return timeOrInfinity(until), err
	case "date":
		if _, err := time.Parse(time.DateOnly, text); err != nil {
			return "", &ratelimit.FieldError{Field: name, Value: text, Want: "a day such as 2026-01-31"}
		}
	}
	return text, nil
}

// timeOrInfinity is a time as Postgres reads it. The zero time is infinity.
func timeOrInfinity(t time.Time) string {
	if t.IsZero() {
		return "infinity"
	}
	return t.UTC().Format(time.RFC3339Nano)
}

// insertUser makes a user, and reports whether it did: another command may have done so.
func (d *Database) insertUser(ctx context.Context, name string, change *userChange) (bool, error) {
	if !slices.Contains(change.columns, "tier") {
		tiers, err := d.Tiers(ctx)
		if err != nil {
			return false, err
		}
		return false, &ratelimit.FieldError{Field: "tier", Want: "given for a new user, one of " + strings.Join(tiers, ", ")}
	}
	sql := "INSERT INTO rate_limit_users (user_id, " + strings.Join(change.columns, ", ") + ") VALUES ($1, " + strings.Join(change.values, ", ") + ") ON CONFLICT (user_id) DO NOTHING"
	made, err := d.execute(ctx, sql, append([]any{name}, change.args...)...)
	return made > 0, err
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
