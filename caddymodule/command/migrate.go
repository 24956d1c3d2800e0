package command

import (
	"errors"
	"io"

	"github.com/spf13/cobra"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

func migrateCommand(t *tool) *cobra.Command {
	printOnly := false
	cmd := &cobra.Command{
		Use:   "migrate [--print]",
		Short: "Creates the tables, or upgrades them in place",
		Long: `Creates the tables of the counters, of the history and of the policy, or upgrades them in
place and keeps their rows. The command may run any number of times, also while proxies use the
tables. The role must be able to create tables. --print only prints the SQL, for psql.`,
		Example: `  caddy pg-ratelimit migrate --dsn postgres://admin@db/limits
  caddy pg-ratelimit migrate --print > schema.sql`,
	}
	cmd.Flags().BoolVar(&printOnly, "print", false, "print the SQL and change nothing")
	run := t.on(func(c *call) error {
		m, err := c.db.Migrate(c.ctx)
		if m == (admin.Migration{}) {
			return err
		}
		// On a server that is too old, the policy is an error, and the others are made.
		return errors.Join(err, show(c, m, nil, func(p *page, m admin.Migration) {
			p.print("tables of the counters: %s\ntables of the history: %s\ntables of the policy: %s\n", m.Counters, m.History, m.Policy)
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
