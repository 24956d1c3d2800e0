package admin

import (
	"context"
	"slices"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/columns"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// UserSettings are the settings that SetUser knows.
func UserSettings() []Setting {
	return append(settings(&columns.Tables[columns.Users]), overrideSettings("user")...)
}

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
	change, err := d.parseRowChange(ctx, &columns.Tables[columns.Users], assignments)
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
