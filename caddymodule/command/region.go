package command

import (
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

func regionCommand(t *tool) *cobra.Command {
	return group(&cobra.Command{
		Use:   "region",
		Short: "Copies the policy to other regions, by logical replication",
		Example: `  caddy pg-ratelimit region publish --dsn postgres://admin@home/limits
  caddy pg-ratelimit region subscribe eu --from postgres://replicator@home/limits --dsn postgres://postgres@eu/limits
  caddy pg-ratelimit region status --dsn postgres://admin@eu/limits`,
	}, regionPublish(t), regionSubscribe(t), regionStatus(t))
}

func regionPublish(t *tool) *cobra.Command {
	printOnly := false
	cmd := &cobra.Command{
		Use:   "publish [--print]",
		Short: "Publishes the policy of this database for regions",
		Long: `Creates the publication rate_limit_policy of the seven tables of the policy. The server must have wal_level = logical.
The role must own the tables, and may CREATE in the database.`,
		Example: "  caddy pg-ratelimit region publish\n  caddy pg-ratelimit region publish --print",
		RunE: t.on(func(c *call) error {
			if printOnly {
				commands, err := c.db.PublishSQL(c.ctx)
				if err != nil {
					return err
				}
				return c.printSQL(commands)
			}
			done, err := c.db.Publish(c.ctx)
			return show(c, map[string]bool{"published": true, "created": done}, err, func(p *page, r map[string]bool) {
				if r["created"] {
					p.print("The policy is published.\n")
				} else {
					p.print("The policy was published before.\n")
				}
			})
		}),
	}
	cmd.Flags().BoolVar(&printOnly, "print", false, "print the SQL and change nothing")
	return cmd
}

func regionSubscribe(t *tool) *cobra.Command {
	from, printOnly, again := "", false, false
	cmd := &cobra.Command{
		Use:   "subscribe REGION --from DSN [--again] [--print]",
		Short: "Makes this database a region that gets its policy from a publisher",
		Long: `Makes the database a region, deletes its policy but for its own bans, and subscribes to that of the publisher at
--from, as the server of the region reaches it. Proxies of the region keep what they have read until all is there. The role must
be a superuser, or may create subscriptions and set session_replication_role.`,
		Example: `  caddy pg-ratelimit region subscribe eu --from postgres://replicator@home/limits
  caddy pg-ratelimit region subscribe eu --from postgres://replicator@home/limits --again`,
	}
	cmd.Flags().StringVar(&from, "from", "", "Postgres URL or key=value pairs of the publisher; - reads it from standard input")
	cmd.Flags().BoolVar(&again, "again", false, "drop the subscription that there is, and copy the policy anew")
	cmd.Flags().BoolVar(&printOnly, "print", false, "print the SQL and change nothing")
	_ = cmd.MarkFlagRequired("from")
	run := t.on(func(c *call) error {
		publisher, err := c.secret("--from", from)
		if err != nil {
			return err
		}
		err = c.db.Subscribe(c.ctx, c.args[0], publisher, again)
		return show(c, map[string]string{"region": c.args[0]}, err, func(p *page, _ map[string]string) {
			p.print("The region %s copies the policy. To see how far: caddy pg-ratelimit region status\n", text(c.args[0]))
		})
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if printOnly {
			return (&call{tool: t, cmd: cmd}).printSQL(admin.SubscribeSQL(args[0], from))
		}
		return run(cmd, args)
	}
	return cmd
}

// printSQL prints commands for psql.
func (c *call) printSQL(commands []string) error {
	_, err := io.WriteString(c.cmd.OutOrStdout(), strings.Join(commands, ";\n")+";\n")
	return err
}

func regionStatus(t *tool) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Shows whether the policy reaches the regions",
		Long: `At a region: the state of its subscription, for how long the publisher has been silent (an idle one speaks every 30
seconds), and how many times a change could not be applied. At the publisher: each region, and how much of the write-ahead log
the server keeps for it.`,
		Example: "  caddy pg-ratelimit region status\n  caddy pg-ratelimit region status --json",
		RunE: t.on(func(c *call) error {
			all, err := c.db.RegionStatuses(c.ctx)
			return showList(c, all, err, regionRow, "The policy of this database is not published to a region, and is no copy.")
		}),
	}
}

func regionRow(r *admin.RegionStatus) row {
	silent, errors, retained := none, none, none
	if r.Silent != nil {
		silent = span(*r.Silent)
	}
	if r.Errors != nil {
		errors = strconv.FormatInt(*r.Errors, 10)
	}
	if r.Retained != nil {
		retained = strconv.FormatInt(*r.Retained>>10, 10) + " kB"
	}
	return row{"ROLE", r.Role, "SUBSCRIPTION", r.Subscription, "STATE", r.State, "SILENT FOR", silent, "ERRORS", errors, "LOG KEPT", retained}
}
