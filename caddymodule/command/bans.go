package command

import (
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
func (b *banTerms) until(c *call) (time.Time, error) {
	if b.lasts == "" {
		return c.end("--until", b.ends)
	}
	d, err := lasting("--for", b.lasts)
	if err != nil {
		return time.Time{}, err
	}
	now, err := c.db.Now(c.ctx)
	return now.Add(d), err
}

// ban makes a ban on these terms, and prints it.
func (c *call) ban(terms *banTerms, make func(until time.Time) (*admin.Ban, error)) error {
	until, err := terms.until(c)
	if err != nil {
		return err
	}
	ban, err := make(until)
	return show(c, ban, err, func(p *page, ban *admin.Ban) {
		lasts := "for ever"
		if ban.Until != nil {
			lasts = "until " + moment(*ban.Until)
		}
		p.print("The %s %s is banned %s.\n", ban.Kind, text(ban.Banned), lasts)
	})
}

func banRow(b *admin.Ban) row {
	return row{"KIND", b.Kind, "BANNED", b.Banned, "UNTIL", or(b.Until, "never"), "TIMES", b.Times, "BY", b.BannedBy, "SINCE", b.BannedAt, "REASON", b.Reason}
}

func bansCommand(t *tool) *cobra.Command {
	return &cobra.Command{
		Use:     "bans",
		Short:   "Lists the networks, users and keys that are shut out",
		Example: "  caddy pg-ratelimit bans",
		RunE: t.on(func(c *call) error {
			bans, err := c.db.Bans(c.ctx)
			return showList(c, bans, err, banRow, "There are no bans.")
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
		RunE: t.on(func(c *call) error {
			network, err := admin.ParseNetwork("NETWORK", c.args[0])
			if err != nil {
				return err
			}
			if admin.IsWide(network) && !yes {
				return &ratelimit.FieldError{Field: "NETWORK", Value: network.String(), Want: "an IPv4 /8 or an IPv6 /16 at most, which is as much as one organisation holds, or given with --yes: a wider ban shuts out all kinds of clients"}
			}
			return c.ban(&terms, func(until time.Time) (*admin.Ban, error) {
				return c.db.BanNetwork(c.ctx, network, until, terms.reason)
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
		ValidArgsFunction: t.completeOne(banned("network")),
		RunE: t.on(func(c *call) error {
			network, err := admin.ParseNetwork("NETWORK", c.args[0])
			if err != nil {
				return err
			}
			return c.changed(c.db.UnbanNetwork(c.ctx, network), "network", network.String(), "unbanned")
		}),
	}
}
