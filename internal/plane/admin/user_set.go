package admin

import (
	"context"
	"slices"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

var userColumns = []column{
	{"tier", "text", "the tier of the user"},
	{"tier_until", "timestamptz", "when the tier ends: 90d, 2026-12-31 or never"},
	{"period_start", "date", "a day on which a billing period begins"},
	{"time_zone", "text", "the zone of the billing periods, as in Europe/Berlin"},
	{"comment", "text", "for people"},
}

// UserSettings are the settings that SetUser knows.
func UserSettings() []Setting { return append(settings(userColumns), overrideSetting("user")) }

// SetUser makes a user, or changes the settings that are named, each as name=value. An empty
// value takes a setting back to its default, and deletes an override. It reports whether the
// user is new.
func (d *Database) SetUser(ctx context.Context, name string, texts []string) (isNew bool, err error) {
	assignments, err := parseAssignments(texts, settingNames(UserSettings()), isOverride)
	if err != nil {
		return false, err
	}
	if slices.Contains(assignments, assignment{"tier", ""}) {
		return false, &ratelimit.FieldError{Field: "tier", Want: "the name of a tier"}
	}
	change, err := d.parseRowChange(ctx, userColumns, assignments)
	if err != nil {
		return false, err
	}
	defer func() { err = withValue(err, texts) }()
	err = d.together(ctx, func() error {
		isNew, err = d.makeOrChange(ctx, "rate_limit_users", "user_id", name, &change, func() error {
			if slices.Contains(change.columns, "tier") {
				return nil
			}
			tiers, err := d.TierNames(ctx)
			if err != nil {
				return err
			}
			return &ratelimit.FieldError{Field: "tier", Want: "given for a new user, one of " + strings.Join(tiers, ", ")}
		})
		if err != nil {
			return err
		}
		return d.setOverrides(ctx, "user_id", name, &change)
	})
	return isNew, err
}
