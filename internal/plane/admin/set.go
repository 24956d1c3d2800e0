package admin

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/columns"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policyfile"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// burstSuffix ends a setting that is another burst of the limits of a rule.
const burstSuffix = ".burst"

// The tables whose rows Set changes.
const (
	Tiers = columns.Tiers
	Users = columns.Users
	Keys  = columns.Keys
)

// Setting is a column as a setting: its name, what it means, and values.
type Setting = columns.Column

// Settings are the settings of a table that Set knows. Those of limits are no columns.
func Settings(table int) []*Setting {
	t := &columns.Tables[table]
	all := t.Set()
	if table == columns.Users || table == columns.Keys {
		all = append(all, &Setting{Name: "RULE/LIMIT", Help: "another amount of a limit for this " + t.Kind + ": a number or unlimited"},
			&Setting{Name: "RULE" + burstSuffix, Help: "another burst of the limits of a rule for this " + t.Kind})
	}
	return all
}

func namesOf(settings []*Setting) []string {
	var names []string
	for _, s := range settings {
		names = append(names, s.Name)
	}
	return names
}

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
			return nil, fmt.Errorf("%s: unknown: must be %s", name, edge.Among(name, known))
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

// parameters are columns, and their values as package policyfile has them, for SQL with the names of the columns and the
// SQL of their values in a JSON array r.
type parameters struct {
	names, sql []string
	values     []any
}

// add adds the value of a column. A list has commas. A duration of a Moment begins now. An empty text is the default.
func (p *parameters) add(table int, c *columns.Column, text string, now time.Time) (value any, err error) {
	texts := []string{text}
	switch {
	case text == "":
		value = c.Default
	case c.Kind.IsList():
		texts, err = parseList(c.Name, text)
		for i := 0; err == nil && c.Kind == columns.Networks && i < len(texts); i++ {
			var network netip.Prefix
			network, err = ParseNetwork(c.Name, texts[i])
			texts[i] = network.String()
		}
	case c.Kind == columns.Moment:
		var until time.Time
		if until, err = ParseUntil(c.Name, text, now); !until.IsZero() {
			texts[0] = timeOrInfinity(until)
		}
	}
	if err == nil && text != "" {
		value, err = policyfile.Tables[table].Value(c, texts)
	}
	p.names = append(p.names, c.Name)
	p.sql = append(p.sql, writeSQL(c, len(p.values)))
	p.values = append(p.values, value)
	return value, err
}

// rowKeys are the columns that name the rows that Set changes, and the columns of overrides for them.
var rowKeys = map[int]struct{ name, holder string }{
	columns.Tiers: {name: "tier"}, columns.Users: {"user_id", "user_id"}, columns.Keys: {"id", "key_id"},
}

// Set makes a tier or a user, or changes the settings of one or of an API key that are named, each as name=value. An empty
// value takes a setting back to its default, and deletes an override. A new tier needs no setting. id is the name, or the
// number of the key. Set reports whether the row is new.
func (d *Database) Set(ctx context.Context, table int, id any, texts []string) (isNew bool, err error) {
	t, holder := &columns.Tables[table], rowKeys[table].holder
	var assignments, overrides []assignment
	if table != columns.Tiers || len(texts) > 0 {
		assignments, err = parseAssignments(texts, namesOf(Settings(table)), func(name string) bool {
			return holder != "" && (strings.Contains(name, "/") || strings.HasSuffix(name, burstSuffix))
		})
	}
	if err != nil {
		return false, err
	}
	now, err := d.Now(ctx)
	if err != nil {
		return false, err
	}
	var change parameters
	for _, a := range assignments {
		c := t.Find(a.name)
		if c == nil {
			overrides = append(overrides, a)
			continue
		}
		if a.value == "" && c.Needed {
			return false, &ratelimit.FieldError{Field: c.Name, Want: c.Help}
		}
		if _, err = change.add(table, c, a.value, now); err == nil && c.Name == "tier" {
			err = d.checkTier(ctx, c.Name, a.value)
		}
		if err != nil {
			return false, err
		}
	}
	err = d.together(ctx, func(w *work) {
		isNew = w.setRow(table, id, &change)
		for _, a := range overrides {
			w.setOverride(holder, id, a)
		}
	})
	return isNew, withValues(err, append(texts, fmt.Sprint(rowKeys[table].name, "=", id))...)
}

// checkTier returns an error if there is no tier of this name. "" is no tier.
func (d *Database) checkTier(ctx context.Context, field, tier string) error {
	if tier == "" {
		return nil
	}
	tiers, err := d.TierNames(ctx)
	if err == nil && !slices.Contains(tiers, tier) {
		err = &ratelimit.FieldError{Field: field, Value: tier, Want: amongSome(tier, tiers)}
	}
	return err
}

// setRow makes a row, or changes its columns, and locks it. It reports whether the row is new.
func (w *work) setRow(table int, id any, change *parameters) bool {
	t, key := &columns.Tables[table], rowKeys[table].name
	if w.lacks("SELECT true FROM "+t.Name+" WHERE "+key+" = $1 FOR UPDATE", id) {
		w.mayMake(table, id, change)
		made := w.execute("INSERT INTO "+t.Name+" ("+strings.Join(append([]string{key}, change.names...), ", ")+
			") SELECT "+strings.Join(append([]string{"$1"}, change.sql...), ", ")+" FROM (SELECT $2::jsonb) AS rows(r) ON CONFLICT ("+key+") DO NOTHING", id, toJSON(change.values))
		if made > 0 {
			return true
		}
		// Another command has made the row meanwhile.
	}
	if len(change.names) > 0 {
		w.execute("UPDATE "+t.Name+" SET ("+strings.Join(change.names, ", ")+") = (SELECT "+strings.Join(change.sql, ", ")+
			" FROM (SELECT $2::jsonb) AS rows(r)) WHERE "+key+" = $1", id, toJSON(change.values))
	}
	return false
}

// mayMake fails if a row cannot be made.
func (w *work) mayMake(table int, id any, change *parameters) {
	if number, isKey := id.(int64); isKey {
		w.fail(noKey(number))
	}
	for _, c := range columns.Tables[table].Set() {
		if c.Needed && !slices.Contains(change.names, c.Name) {
			tiers, err := w.TierNames(w.ctx)
			w.fail(err)
			w.fail(&ratelimit.FieldError{Field: c.Name, Want: "given for a new user, one of " + strings.Join(tiers, ", ")})
		}
	}
}

// setOverride makes, changes or deletes the always valid override of a limit for a user (holder "user_id") or for an API
// key ("key_id"); or, of RULE.burst, the burst of those of the limits of the rule that have one. The row of the holder is
// locked, so that two commands do not both insert. A limit without an override gets one with the amount that it has, which
// keeps it when the rule changes.
func (w *work) setOverride(holder string, id any, a assignment) {
	rule, limit, isAmount := strings.Cut(a.name, "/")
	column, kind := "events", columns.Amount
	limits := []string{limit}
	if isAmount {
		if w.lacks("SELECT true FROM rate_limit_rule_limits WHERE rule = $1 AND name = $2", rule, limit) {
			w.fail(w.noLimit(w.ctx, a.name))
		}
	} else {
		rule, column, kind = strings.TrimSuffix(a.name, burstSuffix), "burst", columns.Whole
		limits = some[string](w, "SELECT name FROM rate_limit_rule_limits WHERE rule = $1 AND algorithm IN ('token_bucket', 'gcra') ORDER BY name", rule)
		if w.err == nil && len(limits) == 0 {
			w.fail(&ratelimit.FieldError{Field: a.name, Value: a.value, Want: "of a rule with a token_bucket or a gcra"})
		}
	}
	number, err := overrideValue(kind, a)
	w.fail(err)
	for _, limit := range limits {
		where := " WHERE rule = $1 AND limit_name = $2 AND " + holder + " = $3 AND valid = '(,)'"
		if a.value == "" && isAmount {
			w.execute("DELETE FROM rate_limit_overrides"+where, rule, limit, id)
		} else if w.execute("UPDATE rate_limit_overrides SET "+column+" = $4::bigint"+where, rule, limit, id, number) == 0 && a.value != "" {
			w.execute("INSERT INTO rate_limit_overrides (rule, limit_name, "+holder+`, events, burst)
SELECT rule, name, $3, CASE WHEN $5::boolean THEN $4::bigint ELSE events END, CASE WHEN NOT $5::boolean THEN $4::bigint END
FROM rate_limit_rule_limits WHERE rule = $1 AND name = $2`, rule, limit, id, number, isAmount)
		}
	}
}

// overrideValue is the amount or the burst of an override; nil is unlimited, or none.
func overrideValue(kind columns.Kind, a assignment) (any, error) {
	if a.value == "" {
		return nil, nil
	}
	number, err := policyfile.Tables[columns.Overrides].Value(&columns.Column{Name: a.name, Kind: kind}, []string{a.value})
	if number == policyfile.Unlimited {
		return nil, err
	}
	if kind == columns.Whole && (err != nil || number == "0" || strings.HasPrefix(number.(string), "-")) {
		err = &ratelimit.FieldError{Field: a.name, Value: a.value, Want: "a whole number from 1 to 9007199254740992"}
	}
	return number, err
}

// parseList reads values with commas between them.
func parseList(field, text string) ([]string, error) {
	list := strings.Split(text, ",")
	for i, item := range list {
		list[i] = strings.TrimSpace(item)
		if list[i] == "" {
			return nil, &ratelimit.FieldError{Field: field, Value: text, Want: "values with commas between them"}
		}
	}
	return list, nil
}

// ParseNetwork reads a network, or an address as the network of this one address. A network
// of IPv4 addresses in IPv6 form becomes one of IPv4. The error is a *ratelimit.FieldError
// about the field.
func ParseNetwork(field, text string) (netip.Prefix, error) {
	if address, err := netip.ParseAddr(text); err == nil && address.Zone() == "" {
		address = address.Unmap()
		return netip.PrefixFrom(address, address.BitLen()), nil
	}
	network, err := netip.ParsePrefix(text)
	if err != nil {
		return network, &ratelimit.FieldError{Field: field, Value: text, Want: "a network or an address, such as 192.0.2.0/24, 192.0.2.1 or 2001:db8::/32"}
	}
	if network != network.Masked() {
		return network, &ratelimit.FieldError{Field: field, Value: text, Want: "the first address of the network: " + network.Masked().String()}
	}
	if network.Addr().Is4In6() && network.Bits() >= 96 {
		network = netip.PrefixFrom(network.Addr().Unmap(), network.Bits()-96)
	}
	return network, nil
}

// ParseAddress reads the address of a client. The error is a *ratelimit.FieldError about the field.
func ParseAddress(field, text string) (netip.Addr, error) {
	address, err := netip.ParseAddr(text)
	if err != nil {
		return address, &ratelimit.FieldError{Field: field, Value: text, Want: "an address such as 192.0.2.1 or 2001:db8::1"}
	}
	return address, nil
}

const wantTime = "a time such as 2026-11-27, 2026-11-27T18:00:00Z or 2026-11-27T18:00:00+01:00"

// ParseTime reads a point in time. A day begins at midnight UTC. The error is a
// *ratelimit.FieldError about the field.
func ParseTime(field, text string) (time.Time, error) {
	if t, ok := policyfile.ParseTime(text); ok {
		return t, nil
	}
	return time.Time{}, &ratelimit.FieldError{Field: field, Value: text, Want: wantTime}
}

// ParseUntil reads when something ends: "never" (the zero time), a duration from now such as
// 24h or 90d, or a point in time. The error is a *ratelimit.FieldError about the field.
func ParseUntil(field, text string, now time.Time) (time.Time, error) {
	if text == "never" {
		return time.Time{}, nil
	}
	if d, err := ratelimit.ParseWindow(text); err == nil && d > 0 {
		return now.Add(d), nil
	}
	t, err := ParseTime(field, text)
	if err != nil {
		return t, &ratelimit.FieldError{Field: field, Value: text, Want: "a duration such as 24h or 90d, " + wantTime + ", or never"}
	}
	if !t.After(now) {
		return t, &ratelimit.FieldError{Field: field, Value: text, Want: "in the future"}
	}
	return t, nil
}

// intervalOf returns a duration as an interval of Postgres. The interval has no days and no
// months, because their lengths vary.
func intervalOf(d time.Duration) string {
	return strconv.FormatInt(d.Microseconds(), 10) + " microseconds"
}

// timeOrInfinity is a time as Postgres reads it. The zero time is infinity.
func timeOrInfinity(t time.Time) string {
	if t.IsZero() {
		return "infinity"
	}
	return t.UTC().Format(time.RFC3339Nano)
}
