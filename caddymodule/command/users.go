package command

import (
	"context"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

func usersCommand(t *tool) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "users",
		Short: "Shows, changes and bans users",
		Example: `  caddy pg-ratelimit users get acme
  caddy pg-ratelimit users set acme tier=pro`,
	}
	group(cmd)
	cmd.AddCommand(usersGet(t), usersSet(t), usersBan(t), usersUnban(t))
	return cmd
}

func usersGet(t *tool) *cobra.Command {
	return &cobra.Command{
		Use:               "get USER",
		Short:             "Shows a user: tier, keys, overrides, bans, and what is used",
		Example:           "  caddy pg-ratelimit users get acme",
		Args:              arguments("USER"),
		ValidArgsFunction: t.completeUser,
		RunE: t.on(func(ctx context.Context, db *admin.Database, cmd *cobra.Command, args []string) error {
			user, err := db.User(ctx, args[0])
			if err != nil {
				return err
			}
			return t.show(cmd, user, func(to io.Writer) error { return writeUser(to, &user) })
		}),
	}
}

func writeUser(to io.Writer, u *admin.User) error {
	facts := table{}
	facts.add("user", text(u.User))
	if u.Tier == nil {
		facts.add("tier", "- (not in the table of users)")
	} else {
		facts.add("tier", text(*u.Tier), "until "+optionalMoment(u.TierUntil, "never"))
		facts.add("billing period", optional(u.PeriodStart), optional(u.TimeZone))
		facts.add("comment", optional(u.Comment))
		facts.add("created", optionalMoment(u.CreatedAt, none))
		facts.add("changed", optionalMoment(u.UpdatedAt, none))
	}
	if err := facts.write(to); err != nil {
		return err
	}
	overrides := table{header: []string{"LIMIT", "AMOUNT", "FOR", "FROM", "UNTIL", "REASON"}}
	for _, o := range u.Overrides {
		holder := "the user"
		if o.KeyID != nil {
			holder = "key " + whole(*o.KeyID)
		}
		overrides.add(text(o.Rule+"/"+o.Limit), optionalWhole(o.Events, "unlimited"), holder, optionalMoment(o.ValidFrom, none), optionalMoment(o.ValidUntil, "never"), optional(o.Reason))
	}
	return writeSections(to, section{title: "Keys", table: keyTable(u.Keys)}, section{title: "Overrides", table: overrides},
		section{title: "Bans", table: banTable(u.Bans)}, section{title: "Used", table: usageTable(u.Usage)})
}

func usersSet(t *tool) *cobra.Command {
	return &cobra.Command{
		Use:   "set USER SETTING=VALUE ...",
		Short: "Makes a user, or changes settings of one",
		Long: `Makes a user, or changes the settings that are named and keeps the others. An empty value
takes a setting back to its default, and deletes an override. A new user needs a tier. The
change is one transaction.

Settings:
` + settingsHelp(admin.UserSettings()),
		Example: `  caddy pg-ratelimit users set acme tier=free
  caddy pg-ratelimit users set acme tier=pro tier_until=30d
  caddy pg-ratelimit users set acme period_start=2026-01-31 time_zone=Europe/Berlin

  # one user with more, and without it again
  caddy pg-ratelimit users set acme free/per_hour=5000
  caddy pg-ratelimit users set acme free/per_hour=`,
		Args:              arguments("USER", "SETTING=VALUE…"),
		ValidArgsFunction: t.completeUserSet,
		RunE: t.on(func(ctx context.Context, db *admin.Database, cmd *cobra.Command, args []string) error {
			isNew, err := db.SetUser(ctx, args[0], args[1:])
			if err != nil {
				return err
			}
			return t.change(cmd, "user", args[0], createdOrChanged(isNew))
		}),
	}
}

func usersBan(t *tool) *cobra.Command {
	var terms banTerms
	cmd := &cobra.Command{
		Use:   "ban USER",
		Short: "Shuts a user out, with all its keys",
		Example: `  caddy pg-ratelimit users ban acme --for 24h --reason 'ticket 4711'
  caddy pg-ratelimit users ban acme`,
		Args:              arguments("USER"),
		ValidArgsFunction: t.completeUser,
		RunE: t.on(func(ctx context.Context, db *admin.Database, cmd *cobra.Command, args []string) error {
			return t.ban(ctx, db, cmd, &terms, func(until time.Time) (admin.Ban, error) {
				return db.BanUser(ctx, args[0], until, terms.reason)
			})
		}),
	}
	terms.flags(cmd)
	return cmd
}

func usersUnban(t *tool) *cobra.Command {
	return &cobra.Command{
		Use:               "unban USER",
		Short:             "Lifts the ban of a user",
		Example:           "  caddy pg-ratelimit users unban acme",
		Args:              arguments("USER"),
		ValidArgsFunction: t.completeOne(bannedUsers),
		RunE: t.on(func(ctx context.Context, db *admin.Database, cmd *cobra.Command, args []string) error {
			if err := db.UnbanUser(ctx, args[0]); err != nil {
				return err
			}
			return t.change(cmd, "user", args[0], "unbanned")
		}),
	}
}
