package command

import (
	"context"
	"io"

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
		Args:              arguments("USER"),
		ValidArgsFunction: t.completeUser,
		RunE: t.on(func(ctx context.Context, db *admin.Database, cmd *cobra.Command, args []string) error {
			now, err := db.Now(ctx)
			if err != nil {
				return err
			}
			p, err := admin.ParseMonth("--month", month, now)
			switch {
			case err != nil:
			case in.since != "":
				p, err = in.period(ctx, db)
			case in.until != "":
				err = errNoSince
			}
			if err != nil {
				return err
			}
			usage, err := db.UsageOf(ctx, args[0], p)
			if err != nil {
				return err
			}
			usage.User = hideKeys(usage.User)
			return t.show(cmd, usage, func(to io.Writer) error { return writeUsage(to, &usage) })
		}),
	}
	cmd.Flags().StringVar(&month, "month", "", "a month such as 2026-11 (default the current one)")
	in.flags(cmd, "", "the days")
	cmd.MarkFlagsMutuallyExclusive("month", "since")
	cmd.MarkFlagsMutuallyExclusive("month", "until")
	return cmd
}

func writeUsage(to io.Writer, u *admin.UserUsage) error {
	days := table{
		header: []string{"DAY", "REQUESTS", "COST", "REFUSED", "LAST"},
		empty:  "No request of the user " + text(u.User) + " was counted from " + u.First + " to " + u.Last + ".",
	}
	for i := range u.Days {
		days.add(usedCells(u.Days[i].Day, &u.Days[i].Used)...)
	}
	if len(u.Days) > 0 {
		days.add(usedCells("total", &u.Total)...)
	}
	if err := days.write(to); err != nil {
		return err
	}
	keys := table{header: []string{"KEY ID", "REQUESTS", "COST", "REFUSED", "LAST"}}
	for i := range u.Keys {
		key := whole(u.Keys[i].KeyID)
		if u.Keys[i].KeyID == 0 {
			key = "no key"
		}
		keys.add(usedCells(key, &u.Keys[i].Used)...)
	}
	return writeSections(to, section{title: "By API key:", table: keys})
}

func usedCells(of string, u *admin.Used) []string {
	return []string{of, whole(u.Requests), whole(u.Cost), whole(u.Refused), optionalMoment(u.LastRequest, none)}
}
