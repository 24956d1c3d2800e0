package command

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

func usersCommand(t *tool) *cobra.Command {
	return group(&cobra.Command{
		Use:   "users",
		Short: "Shows, changes, bans and deletes users",
		Example: `  caddy pg-ratelimit users get acme
  caddy pg-ratelimit users set acme tier=pro`,
	}, usersGet(t), usersList(t), usersSet(t), usersDelete(t), usersBan(t), usersUnban(t))
}

func usersGet(t *tool) *cobra.Command {
	return &cobra.Command{
		Use:               "get USER",
		Short:             "Shows a user: tier, keys, overrides, bans, usage, and what is used of the limits",
		Example:           "  caddy pg-ratelimit users get acme",
		ValidArgsFunction: t.completeOne(userNames),
		RunE: t.on(func(c *call) error {
			user, err := c.db.User(c.ctx, c.args[0])
			return show(c, user, err, addUser)
		}),
	}
}

func addUser(p *page, u admin.User) {
	var facts table
	facts.add("user", u.User)
	if u.Tier == nil {
		facts.add("tier", "- (not in the table of users)")
	} else {
		facts.add("tier", u.Tier, "until "+or(u.TierUntil, "never"))
		facts.add("billing period", u.PeriodStart, u.TimeZone)
		facts.add("comment", u.Comment)
		facts.add("created", u.CreatedAt)
		facts.add("changed", u.UpdatedAt)
	}
	if r := u.Recent; r != nil {
		facts.add("requests today", r.Today)
		facts.add("this month", r.ThisMonth)
		facts.add("refused", r.Refused, fmt.Sprintf("%d by a limit (429)", r.Limited), fmt.Sprintf("%d with 401 or 403", r.Denied))
		facts.add("last request", r.LastRequest)
		facts.add("resets", r.Resets)
	}
	p.table(facts)
	addOwned(p, u)
	addSection(p, "Used", u.Usage, usageRow)
}

// addOwned adds the keys, overrides and bans of a user.
func addOwned(p *page, u admin.User) {
	addSection(p, "Keys", u.Keys, keyRow)
	addSection(p, "Overrides", u.Overrides, func(o *admin.Override) row {
		holder := "the user"
		if o.KeyID != nil {
			holder = "key " + cell(o.KeyID)
		}
		return row{"LIMIT", o.Rule + "/" + o.Limit, "AMOUNT", or(o.Events, "unlimited"), "FOR", holder, "FROM", o.ValidFrom, "UNTIL", or(o.ValidUntil, "never"), "REASON", o.Reason}
	})
	addSection(p, "Bans", u.Bans, banRow)
}

// recentHelp says what the columns of recentRow are.
const recentHelp = `With a history, the list has
the requests of today and of this month in UTC, how many of this month a limit refused (429),
how many were refused with 401 or 403, the last request, and when all limits have their full
quota again, at the latest.`

// recentRow has the columns of what a user or a key did; none if no usage was recorded.
func recentRow(r *admin.Recent) row {
	if r == nil {
		return nil
	}
	return row{"TODAY", r.Today, "MONTH", r.ThisMonth, "429", r.Limited, "401/403", r.Denied, "LAST", r.LastRequest, "RESETS", r.Resets}
}

func usersList(t *tool) *cobra.Command {
	tier, order, most := "", "", number(100)
	cmd := &cobra.Command{
		Use:   "list [--tier TIER] [--sort last] [-n 100]",
		Short: "Lists the users, and what they did",
		Long: `Lists the users in the order of their names, or, with --sort last, those first that have sent no request for the
longest time. STATE is banned, blocked (by an override of 0), or active. ` + recentHelp,
		Example: `  caddy pg-ratelimit users list
  caddy pg-ratelimit users list --tier free -n 1000 --json`,
		RunE: t.on(func(c *call) error {
			if err := most.check(); err != nil {
				return err
			}
			if order != admin.ByName && order != admin.ByLast {
				return &ratelimit.FieldError{Field: "--sort", Value: order, Want: "name or last"}
			}
			users, err := c.db.Users(c.ctx, tier, order, int(most))
			return showList(c, users, err, func(u *admin.ListedUser) row {
				return append(row{"USER", u.User, "TIER", u.Tier, "STATE", u.State}, recentRow(u.Recent)...)
			}, "There are no users.")
		}),
	}
	cmd.Flags().StringVar(&tier, "tier", "", "users of this tier only")
	cmd.Flags().StringVar(&order, "sort", admin.ByName, "name, or last for those without requests first")
	most.flag(cmd)
	t.mayComplete(cmd, "tier", t.completeOne(tierNames))
	return cmd
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
		ValidArgsFunction: t.completeSettings(userNames, admin.UserSettings(), "tier"),
		RunE: t.on(func(c *call) error {
			isNew, err := c.db.SetUser(c.ctx, c.args[0], c.args[1:])
			return c.changed(err, "user", c.args[0], createdOrChanged(isNew))
		}),
	}
}

func usersDelete(t *tool) *cobra.Command {
	return &cobra.Command{
		Use:   "delete USER",
		Short: "Deletes a user with its keys and overrides",
		Long: `Deletes a user with its API keys, its overrides and the bans of its keys, asks nothing, and
prints what went. Proxies refuse the keys within a second. A ban of the user stays, and so
does the history. To shut a user out and keep the keys, see users ban.`,
		Example:           "  caddy pg-ratelimit users delete acme",
		ValidArgsFunction: t.completeOne(userNames),
		RunE: t.on(func(c *call) error {
			gone, err := c.db.DeleteUser(c.ctx, c.args[0])
			return show(c, gone, err, func(p *page, gone admin.DeletedUser) {
				p.print("The user %s is deleted. The tier was %s.\n", text(gone.User.User), cell(gone.Tier))
				if len(gone.Keys)+len(gone.Overrides) > 0 {
					p.print("With the user went:\n")
				}
				addOwned(p, gone.User)
				if gone.StillBanned {
					p.print("\nThe user is still banned. To lift that: caddy pg-ratelimit users unban %s\n", text(gone.User.User))
				}
			})
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
		ValidArgsFunction: t.completeOne(userNames),
		RunE: t.on(func(c *call) error {
			return c.ban(&terms, func(until time.Time) (*admin.Ban, error) {
				return c.db.BanUser(c.ctx, c.args[0], until, terms.reason)
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
		ValidArgsFunction: t.completeOne(banned("user")),
		RunE: t.on(func(c *call) error {
			return c.changed(c.db.UnbanUser(c.ctx, c.args[0]), "user", c.args[0], "unbanned")
		}),
	}
}
