package command

import (
	"bufio"
	"context"
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
		Args:    arguments(),
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.RunE = t.on(func(ctx context.Context, db *admin.Database, cmd *cobra.Command, _ []string) error {
		parts, err := db.Parts(ctx)
		if err != nil {
			return err
		}
		list := table{header: []string{"KIND", "NAME"}, empty: "There is nothing to drop."}
		for _, part := range parts {
			list.add(part.Kind, text(part.Name))
		}
		if err := t.showTable(cmd, parts, list); err != nil || len(parts) == 0 {
			return err
		}
		if !yes {
			if _, err := fmt.Fprint(cmd.ErrOrStderr(), "Drop them, with all rows? Type yes: "); err != nil {
				return err
			}
			answer, err := bufio.NewReader(io.LimitReader(cmd.InOrStdin(), 100)).ReadString('\n')
			if err != nil && !errors.Is(err, io.EOF) {
				return err
			}
			if answer != "yes\n" && answer != "yes" {
				return errors.New("nothing was dropped: the answer must be yes, or use --yes")
			}
		}
		return db.Uninstall(ctx, parts)
	})
	return cmd
}
