package command

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

func uninstallCommand(t *tool) *cobra.Command {
	yes := false
	cmd := &cobra.Command{
		Use:   "uninstall [--yes]",
		Short: "Drops all tables and functions of pg_ratelimit",
		Long: `Lists the tables, views and functions of pg_ratelimit, asks, and drops them with all their
rows. The command refuses while a proxy uses the policy, and if something else in the database
depends on one of them. Roles and schemas stay.`,
		Example: `  caddy pg-ratelimit uninstall --dsn postgres://admin@db/limits`,
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.RunE = t.at(ofAll, func(c *call) error {
		parts, err := c.db.Parts(c.ctx)
		err = showList(c, parts, err, func(p *admin.Part) row { return row{"KIND", p.Kind, "NAME", p.Name} }, "There is nothing to drop.")
		if err != nil || len(parts) == 0 {
			return err
		}
		if !yes {
			if _, err := fmt.Fprint(c.cmd.ErrOrStderr(), "Drop them, with all rows? Type yes: "); err != nil {
				return err
			}
			answer, err := bufio.NewReader(io.LimitReader(c.cmd.InOrStdin(), 100)).ReadString('\n')
			if err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			if answer != "yes\n" && answer != "yes" {
				return errors.New("nothing was dropped: the answer must be yes, or use --yes")
			}
		}
		return c.db.Uninstall(c.ctx, parts)
	})
	return cmd
}
