package command

import (
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

func migrateCommand(t *tool) *cobra.Command {
	printOnly, citus, parts := false, false, 0
	cmd := &cobra.Command{
		Use:   "migrate [--print | --citus --parts N]",
		Short: "Creates the tables, or upgrades them in place",
		Long: `Creates the tables of the counters, of the history and of the policy, or upgrades them in
place and keeps their rows. The command may run any number of times, also while proxies use the
tables. The role must be able to create tables. --print only prints the SQL, for psql.

On the coordinator of Citus, --citus spreads the counters over the servers, in so many parts. The
number cannot change later. Proxies find the parts when they start.`,
		Example: `  caddy pg-ratelimit migrate --dsn postgres://admin@db/limits
  caddy pg-ratelimit migrate --print > schema.sql
  caddy pg-ratelimit migrate --citus --parts 16 --dsn postgres://admin@coordinator/limits`,
	}
	cmd.Flags().BoolVar(&printOnly, "print", false, "print the SQL and change nothing")
	cmd.Flags().BoolVar(&citus, "citus", false, "spread the counters over the servers of Citus")
	cmd.Flags().IntVar(&parts, "parts", 0, "how many parts the counters have with --citus; one or two for each server that there will ever be")
	cmd.MarkFlagsRequiredTogether("citus", "parts")
	run := t.at(ofCounters, func(c *call) error {
		if citus && parts == 0 {
			return errors.New("--parts: 0: must be 1 or more")
		}
		m, err := c.migrate(parts)
		if m == (admin.Migration{}) {
			return err
		}
		// On a server that is too old, the policy is an error, and the others are made.
		return errors.Join(err, show(c, m, nil, func(p *page, m admin.Migration) {
			p.print("tables of the counters: %s\ntables of the history: %s\ntables of the policy: %s\n", m.Counters, m.History, m.Policy)
			if m.Parts != "" {
				p.print("parts of the counters: %s\n", m.Parts)
			}
		}))
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if printOnly {
			_, err := io.WriteString(cmd.OutOrStdout(), admin.MigrationSQL())
			return err
		}
		return run(cmd, args)
	}
	return cmd
}

// migrate makes the tables of each dataset in its database, and so many parts of the counters.
func (c *call) migrate(parts int) (admin.Migration, error) {
	all, err := c.databases()
	if err != nil || all.same() {
		return c.db.MigrateParts(c.ctx, parts)
	}
	var m admin.Migration
	for of := ofCounters; of < datasets; of++ {
		if err := c.open(of); err != nil {
			return m, err
		}
		did, err := c.db.MigrateParts(c.ctx, parts)
		parts = 0 // the counters are first
		switch of {
		case ofCounters:
			m.Counters = did.Counters
			m.Parts = did.Parts
		case ofPolicy:
			m.Policy = did.Policy
		case ofHistory:
			m.History = did.History
		}
		if err != nil && (of == ofPolicy || did.Policy == "") { // else the server is too old for a policy, and has none
			return m, err
		}
	}
	return m, nil
}
