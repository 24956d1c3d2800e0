package command

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// banTerms are the flags of the commands that ban.
type banTerms struct{ lasts, ends, reason string }

func (b *banTerms) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&b.lasts, "for", "", "how long, such as 1h or 7d (default: for ever)")
	cmd.Flags().StringVar(&b.ends, "until", "", "until when, such as 2026-12-31 or 2026-12-31T18:00:00Z")
	cmd.Flags().StringVar(&b.reason, "reason", "", "for people; clients do not see it")
	cmd.MarkFlagsMutuallyExclusive("for", "until")
}

// until is when the ban ends, by the clock of the server; the zero time is never.
func (b *banTerms) until(ctx context.Context, db *admin.Database) (time.Time, error) {
	if b.lasts == "" {
		return end(ctx, db, "--until", b.ends)
	}
	d, err := duration("--for", b.lasts)
	if err == nil && d == 0 {
		err = &ratelimit.FieldError{Field: "--for", Value: b.lasts, Want: "above 0"}
	}
	if err != nil {
		return time.Time{}, err
	}
	now, err := db.Now(ctx)
	return now.Add(d), err
}

// ban makes a ban on these terms, and prints it.
func (t *tool) ban(ctx context.Context, db *admin.Database, cmd *cobra.Command, terms *banTerms, make func(until time.Time) (admin.Ban, error)) error {
	until, err := terms.until(ctx, db)
	if err != nil {
		return err
	}
	ban, err := make(until)
	if err != nil {
		return err
	}
	lasts := "for ever"
	if ban.Until != nil {
		lasts = "until " + moment(*ban.Until)
	}
	return t.done(cmd, ban, fmt.Sprintf("The %s %s is banned %s.", ban.Kind, text(ban.Banned), lasts))
}

func banTable(bans []admin.Ban) table {
	list := table{header: []string{"KIND", "BANNED", "UNTIL", "TIMES", "BY", "SINCE", "REASON"}, empty: "There are no bans."}
	for _, b := range bans {
		list.add(b.Kind, text(b.Banned), optionalMoment(b.Until, "never"), whole(int64(b.Times)), text(b.BannedBy), moment(b.BannedAt), optional(b.Reason))
	}
	return list
}

func bansCommand(t *tool) *cobra.Command {
	return &cobra.Command{
		Use:     "bans",
		Short:   "Lists the networks, users and keys that are shut out",
		Example: "  caddy pg-ratelimit bans",
		Args:    arguments(),
		RunE: t.on(func(ctx context.Context, db *admin.Database, cmd *cobra.Command, _ []string) error {
			bans, err := db.Bans(ctx)
			if err != nil {
				return err
			}
			return t.showTable(cmd, bans, banTable(bans))
		}),
	}
}

func banCommand(t *tool) *cobra.Command {
	var terms banTerms
	yes := false
	cmd := &cobra.Command{
		Use:   "ban NETWORK",
		Short: "Shuts a network or an address out",
		Long: `Shuts a network or an address out. A network that is wider than an IPv4 /8 or an IPv6 /16,
which is more than any one organisation holds, needs --yes.`,
		Example: `  caddy pg-ratelimit ban 192.0.2.0/24 --for 1h --reason scraping
  caddy pg-ratelimit ban 2001:db8::1`,
		Args: arguments("NETWORK"),
		RunE: t.on(func(ctx context.Context, db *admin.Database, cmd *cobra.Command, args []string) error {
			network, err := admin.ParseNetwork("NETWORK", args[0])
			if err != nil {
				return err
			}
			if admin.IsWide(network) && !yes {
				return &ratelimit.FieldError{Field: "NETWORK", Value: network.String(), Want: "an IPv4 /8 or an IPv6 /16 at most, which is as much as one organisation holds, or given with --yes: a wider ban shuts out all kinds of clients"}
			}
			return t.ban(ctx, db, cmd, &terms, func(until time.Time) (admin.Ban, error) {
				return db.BanNetwork(ctx, network, until, terms.reason)
			})
		}),
	}
	terms.flags(cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "ban the network however wide it is")
	return cmd
}

func unbanCommand(t *tool) *cobra.Command {
	return &cobra.Command{
		Use:               "unban NETWORK",
		Short:             "Lifts the ban of a network or an address",
		Example:           "  caddy pg-ratelimit unban 192.0.2.0/24",
		Args:              arguments("NETWORK"),
		ValidArgsFunction: t.completeOne(bannedNetworks),
		RunE: t.on(func(ctx context.Context, db *admin.Database, cmd *cobra.Command, args []string) error {
			network, err := admin.ParseNetwork("NETWORK", args[0])
			if err != nil {
				return err
			}
			if err := db.UnbanNetwork(ctx, network); err != nil {
				return err
			}
			return t.change(cmd, "network", network.String(), "unbanned")
		}),
	}
}
