package admin

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// column is a column of a table that a command sets, with its type.
type column struct{ name, kind, help string }

// settings are the columns as settings.
func settings(columns []column) []Setting {
	var all []Setting
	for _, c := range columns {
		all = append(all, Setting{c.name, c.help})
	}
	return all
}

// rowChange is what a command changes in a row: columns, and overrides for it.
type rowChange struct {
	columns, values []string // values is the SQL of each column's value: a parameter, or DEFAULT
	args            []any    // the parameters from $2 on
	overrides       []assignment
}

// parseRowChange reads assignments of columns and of overrides, and looks for the tier. An empty value
// is the default of a column.
func (d *Database) parseRowChange(ctx context.Context, columns []column, assignments []assignment) (rowChange, error) {
	var change rowChange
	now, err := d.Now(ctx)
	if err != nil {
		return change, err
	}
	for _, a := range assignments {
		if strings.Contains(a.name, "/") {
			change.overrides = append(change.overrides, a)
			continue
		}
		for _, c := range columns {
			if c.name != a.name {
				continue
			}
			sql := "DEFAULT"
			if a.value != "" {
				arg, err := parameter(c.name, c.kind, a.value, now)
				if err == nil && c.name == "tier" {
					err = d.checkTier(ctx, c.name, a.value)
				}
				if err != nil {
					return change, err
				}
				change.args = append(change.args, arg)
				sql = fmt.Sprintf("$%d::%s", len(change.args)+1, c.kind)
			}
			change.columns = append(change.columns, c.name)
			change.values = append(change.values, sql)
		}
	}
	return change, nil
}

// parameter is the value of a column as Postgres reads it.
func parameter(name, kind, text string, now time.Time) (any, error) {
	switch kind {
	case "timestamptz":
		until, err := ParseUntil(name, text, now)
		return timeOrInfinity(until), err
	case "date":
		if _, err := time.Parse(time.DateOnly, text); err != nil {
			return "", &ratelimit.FieldError{Field: name, Value: text, Want: "a day such as 2026-01-31"}
		}
	case "bigint":
		return parseWhole(name, text)
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

// checkTier returns an error if there is no tier of this name. "" is no tier.
func (d *Database) checkTier(ctx context.Context, field, tier string) error {
	if tier == "" {
		return nil
	}
	tiers, err := d.TierNames(ctx)
	for _, t := range tiers {
		if t == tier {
			return nil
		}
	}
	if err != nil {
		return err
	}
	return &ratelimit.FieldError{Field: field, Value: tier, Want: amongSome(tier, tiers)}
}

// makeOrChange makes a row, or changes its columns, in the transaction of the caller, and locks it.
// mayMake returns an error if the row cannot be made. makeOrChange reports whether the row is new.
func (d *Database) makeOrChange(ctx context.Context, table, key, name string, change *rowChange, mayMake func() error) (isNew bool, err error) {
	exists, err := value[bool](ctx, d, "SELECT true FROM "+table+" WHERE "+key+" = $1 FOR UPDATE", name)
	if err != nil {
		return false, err
	}
	if exists == nil {
		if err := mayMake(); err != nil {
			return false, err
		}
		sql := "INSERT INTO " + table + " (" + strings.Join(append([]string{key}, change.columns...), ", ") +
			") VALUES (" + strings.Join(append([]string{"$1"}, change.values...), ", ") + ") ON CONFLICT (" + key + ") DO NOTHING"
		made, err := d.execute(ctx, sql, append([]any{name}, change.args...)...)
		if err != nil || made > 0 {
			return made > 0, err
		}
	}
	// Another command may have made the row meanwhile.
	return false, d.changeRow(ctx, table, key, name, change)
}

// changeRow changes the columns of a row.
func (d *Database) changeRow(ctx context.Context, table, key string, id any, change *rowChange) error {
	if len(change.columns) == 0 {
		return nil
	}
	_, err := d.execute(ctx, "UPDATE "+table+" SET ("+strings.Join(change.columns, ", ")+") = ROW("+strings.Join(change.values, ", ")+") WHERE "+key+" = $1",
		append([]any{id}, change.args...)...)
	return err
}

// rename gives a row another name, which all that refers to it then has. kind is what the row is, and
// missing makes the error about a name that no row has.
func (d *Database) rename(ctx context.Context, kind, table, column, name, to string, missing func(context.Context, string) error) error {
	err := d.together(ctx, func() error {
		taken, err := value[bool](ctx, d, "SELECT true FROM "+table+" WHERE "+column+" = $1", to)
		if err == nil && taken != nil {
			err = &ratelimit.FieldError{Field: kind, Value: to, Want: "a name that no " + kind + " has"}
		}
		if err != nil {
			return err
		}
		changed, err := d.execute(ctx, "UPDATE "+table+" SET "+column+" = $2 WHERE "+column+" = $1", name, to)
		if err == nil && changed == 0 {
			err = missing(ctx, name)
		}
		return err
	})
	return withValue(err, []string{column + "=" + to})
}

// setOverrides makes, changes or deletes the overrides of a user (holder "user_id") or of an API key ("key_id") that
// are always valid. The row of the holder is locked, so that two commands do not both insert.
func (d *Database) setOverrides(ctx context.Context, holder string, id any, change *rowChange) error {
	for _, a := range change.overrides {
		rule, limit, _ := strings.Cut(a.name, "/")
		exists, err := value[bool](ctx, d, "SELECT true FROM rate_limit_rule_limits WHERE rule = $1 AND name = $2", rule, limit)
		if err == nil && exists == nil {
			err = d.noLimit(ctx, a.name)
		}
		if err != nil {
			return err
		}
		where := " WHERE rule = $1 AND limit_name = $2 AND " + holder + " = $3 AND valid = '(,)'"
		if a.value == "" {
			if _, err := d.execute(ctx, "DELETE FROM rate_limit_overrides"+where, rule, limit, id); err != nil {
				return err
			}
			continue
		}
		events, err := parseAmount(a.name, a.value)
		if err != nil {
			return err
		}
		changed, err := d.execute(ctx, "UPDATE rate_limit_overrides SET events = $4"+where, rule, limit, id, events)
		if err == nil && changed == 0 {
			_, err = d.execute(ctx, "INSERT INTO rate_limit_overrides (rule, limit_name, "+holder+", events) VALUES ($1, $2, $3, $4)", rule, limit, id, events)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// noLimit is the error about a RULE/LIMIT that is not in the database.
func (d *Database) noLimit(ctx context.Context, name string) error {
	limits, err := values[string](ctx, d, "SELECT rule || '/' || name FROM rate_limit_rule_limits ORDER BY 1")
	if err != nil {
		return err
	}
	if len(limits) == 0 {
		return notFound(name + ": no rule has a limit")
	}
	return notFound(name + ": no such limit: must be " + amongSome(name, limits))
}

// overrideSetting is the setting of an override.
func overrideSetting(holder string) Setting {
	return Setting{"RULE/LIMIT", "another amount of a limit for this " + holder + ": a number or unlimited"}
}

func isOverride(name string) bool { return strings.Contains(name, "/") }
