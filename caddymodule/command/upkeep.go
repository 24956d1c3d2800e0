package command

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

func upkeepCommand(t *tool) *cobra.Command {
	return &cobra.Command{
		Use:   "upkeep",
		Short: "Makes partitions of the audit log, adds metrics up, and deletes what is past its retention",
		Long: `Does what the history needs about once a minute, and prints what it did: it makes the
partitions of the audit log for today and the next 7 days, adds the metrics up to hours and
days, and deletes what is past its retention, up to 20,000 rows of each kind. Proxies with a
history do the same by themselves, so the command is for when none runs. It may run at any
time. If another process does the upkeep, it does nothing.

A partition that is past its retention and in use is skipped, and goes the next time.`,
		Example: "  caddy pg-ratelimit upkeep\n  caddy pg-ratelimit upkeep --json",
		RunE: t.at(ofHistory, func(c *call) error {
			u, err := c.db.Upkeep(c.ctx)
			if err != nil && u.IsNothing() {
				return err
			}
			// After a failure, the rest was done nevertheless.
			return errors.Join(err, show(c, u, nil, addUpkept))
		}),
	}
}

func addUpkept(p *page, u admin.Upkept) {
	if u.Busy {
		p.print("Another process does the upkeep.\n")
		return
	}
	var list table
	for _, partitions := range []struct {
		what  string
		names []string
	}{{"made", u.Made}, {"detached", u.Detached}, {"dropped", u.Dropped}, {"skipped", u.Skipped}} {
		for _, name := range partitions.names {
			list.add(partitions.what, name)
		}
	}
	list.add("rows of hours and days written", u.RolledUp)
	list.add("rows deleted", u.Deleted)
	p.table(list)
}
