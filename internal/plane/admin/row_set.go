package admin

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/columns"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// settings are the columns of a table that a command sets.
func settings(t *columns.Table) []Setting {
	var all []Setting
	for _, c := range t.Set() {
		all = append(all, settingOf(c))
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
func (d *Database) parseRowChange(ctx context.Context, t *columns.Table, assignments []assignment) (rowChange, error) {
	var change rowChange
	now, err := d.Now(ctx)
	if err != nil {
		return change, err
	}
	for _, a := range assignments {
		c := t.Find(a.name)
		if c == nil {
			change.overrides = append(change.overrides, a)
			continue
		}
		sql := "DEFAULT"
		if a.value != "" {
			arg, err := parameter(c, a.value, now)
			if err == nil && c.Name == "tier" {
				err = d.checkTier(ctx, c.Name, a.value)
			}
			if err != nil {
				return change, err
			}
			change.args = append(change.args, arg)
			sql = fmt.Sprintf("$%d::%s", len(change.args)+1, c.Kind.SQL())
		}
		change.columns = append(change.columns, c.Name)
		change.values = append(change.values, sql)
	}
	return change, nil
}

// parameter is the value of a column as Postgres reads it. A duration of a Moment begins now.
func parameter(c *columns.Column, text string, now time.Time) (any, error) {
	if err := c.Check(text); err != nil {
		return nil, err
	}
	switch c.Kind {
	case columns.Whole, columns.Small:
		return parseWhole(c.Name, text)
	case columns.Amount:
		return parseAmount(c.Name, text)
	case columns.List:
		return parseList(c.Name, text)
	case columns.Networks:
		return parseNetworks(c.Name, text)
	case columns.Range:
		return parseRange(c.Name, text)
	case columns.Duration:
		return parseDuration(c.Name, text)
	case columns.Moment:
		until, err := ParseUntil(c.Name, text, now)
		return timeOrInfinity(until), err
	case columns.Day:
		if _, err := time.Parse(time.DateOnly, text); err != nil {
			return nil, &ratelimit.FieldError{Field: c.Name, Value: text, Want: "a day such as 2026-01-31"}
		}
	case columns.Flag:
		if text != "true" && text != "false" {
			return nil, &ratelimit.FieldError{Field: c.Name, Value: text, Want: "true or false"}
		}
		return text == "true", nil
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
		if rule, isBurst := strings.CutSuffix(a.name, burstSuffix); isBurst && !strings.Contains(rule, "/") {
			if err := d.setBurst(ctx, holder, id, rule, a); err != nil {
				return err
			}
			continue
		}
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

// burstSuffix ends a setting that is another burst of the limits of a rule.
const burstSuffix = ".burst"

// setBurst makes, changes or takes back the burst of the overrides for a holder of the limits of a rule that have a burst. A
// limit without an override gets one with the amount that it has, which keeps it when the rule changes.
func (d *Database) setBurst(ctx context.Context, holder string, id any, rule string, a assignment) error {
	limits, err := values[string](ctx, d, "SELECT name FROM rate_limit_rule_limits WHERE rule = $1 AND algorithm IN ('token_bucket', 'gcra') ORDER BY name", rule)
	if err == nil && len(limits) == 0 {
		err = &ratelimit.FieldError{Field: a.name, Value: a.value, Want: "of a rule with a token_bucket or a gcra"}
	}
	if err != nil {
		return err
	}
	var burst *int64
	if a.value != "" {
		n, err := parseWhole(a.name, a.value)
		if err != nil || n < 1 || n > ratelimit.MaxEvents {
			return &ratelimit.FieldError{Field: a.name, Value: a.value, Want: "a whole number from 1 to 9007199254740992"}
		}
		burst = &n
	}
	for _, limit := range limits {
		where := " WHERE rule = $1 AND limit_name = $2 AND " + holder + " = $3 AND valid = '(,)'"
		changed, err := d.execute(ctx, "UPDATE rate_limit_overrides SET burst = $4::bigint"+where, rule, limit, id, burst)
		if err == nil && changed == 0 && burst != nil {
			_, err = d.execute(ctx, "INSERT INTO rate_limit_overrides (rule, limit_name, "+holder+", events, burst) SELECT rule, name, $3, events, $4::bigint FROM rate_limit_rule_limits WHERE rule = $1 AND name = $2",
				rule, limit, id, burst)
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

// overrideSettings are the settings of overrides.
func overrideSettings(holder string) []Setting {
	return []Setting{
		{Name: "RULE/LIMIT", Help: "another amount of a limit for this " + holder + ": a number or unlimited"},
		{Name: "RULE" + burstSuffix, Help: "another burst of the limits of a rule for this " + holder},
	}
}

func isOverride(name string) bool {
	return strings.Contains(name, "/") || strings.HasSuffix(name, burstSuffix)
}
