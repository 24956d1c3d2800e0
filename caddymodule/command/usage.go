package command

import (
	"github.com/spf13/cobra"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

func usageCommand(t *tool) *cobra.Command {
	var in times
	month := ""
	cmd := &cobra.Command{
		Use:   "usage USER [--month 2026-11 | --since 7d]",
		Short: "Shows what a user did, by day and by API key",
		Long: `Shows how many requests a user made on each day and with each API key, what they cost, and how
many were refused. The default is the current month. Months and days are in UTC, and a day
counts as a whole. COST is of the requests that passed.

Proxies with a history count every request of a user, whatever is in the audit log.`,
		Example: `  caddy pg-ratelimit usage acme
  caddy pg-ratelimit usage acme --month 2026-11
  caddy pg-ratelimit usage acme --since 7d --json`,
		ValidArgsFunction: t.completeOne(userNames),
		RunE: t.at(ofHistory, func(c *call) error {
			now, err := c.db.Now(c.ctx)
			if err != nil {
				return err
			}
			p, err := admin.ParseMonth("--month", month, now)
			switch {
			case err != nil:
			case in.since != "":
				p, err = in.period(c)
			case in.until != "":
				err = errNoSince
			}
			if err != nil {
				return err
			}
			usage, err := c.db.UsageOf(c.ctx, c.args[0], p)
			usage.User = hideKeys(usage.User)
			return show(c, usage, err, addUsage)
		}),
	}
	cmd.Flags().StringVar(&month, "month", "", "a month such as 2026-11 (default the current one)")
	in.flags(cmd, "", "the days")
	cmd.MarkFlagsMutuallyExclusive("month", "since")
	cmd.MarkFlagsMutuallyExclusive("month", "until")
	return cmd
}

func addUsage(p *page, u admin.UserUsage) {
	days := u.Days
	if len(days) > 0 {
		days = append(days, admin.UsedOnDay{Day: "total", Used: u.Total})
	}
	addList(p, days, func(d *admin.UsedOnDay) row { return usedRow("DAY", d.Day, &d.Used) },
		"No request of the user "+text(u.User)+" was counted from "+u.First+" to "+u.Last+".")
	addSection(p, "By API key:", u.Keys, func(k *admin.UsedByKey) row {
		if k.KeyID == 0 {
			return usedRow("KEY ID", "no key", &k.Used)
		}
		return usedRow("KEY ID", k.KeyID, &k.Used)
	})
}

func usedRow(kind string, which any, u *admin.Used) row {
	return row{kind, which, "REQUESTS", u.Requests, "COST", u.Cost, "REFUSED", u.Refused, "LAST", u.LastRequest}
}
