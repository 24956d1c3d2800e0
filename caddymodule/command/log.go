package command

import (
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

func changesCommand(t *tool) *cobra.Command {
	since, most := "", number(100)
	cmd := group(&cobra.Command{
		Use:   "changes [--since 1h] [-n 100]",
		Short: "Lists the changes of the policy, the latest first",
		Long: `Lists the changes of the policy with the role that made each, the latest first. The database
keeps changes for 30 days. --json has the rows before and after.`,
		Example: `  caddy pg-ratelimit changes
  caddy pg-ratelimit changes --since 7d -n 1000 --json`,
	}, changesUndo(t))
	misspelt := cmd.RunE
	list := t.on(func(c *call) error {
		d, err := duration("--since", since)
		if err != nil {
			return err
		}
		if err := most.check(); err != nil {
			return err
		}
		changes, err := c.db.Changes(c.ctx, d, int(most))
		return showList(c, changes, err, func(change *admin.Change) row {
			return row{"ID", change.Seq, "AT", change.At, "BY", change.By, "KIND", change.Kind, "WHICH", which(change), "WHAT", strings.Join(change.What, ", ")}
		}, "Nothing was changed.")
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return misspelt(cmd, args)
		}
		return list(cmd, args)
	}
	cmd.Flags().StringVar(&since, "since", "1h", "changes of the last 30m, 24h, 7d …")
	most.flag(cmd)
	return cmd
}

func changesUndo(t *tool) *cobra.Command {
	return &cobra.Command{
		Use:   "undo ID",
		Short: "Takes a change of the policy back",
		Long: `Takes back what the command or the transaction of a change did to the policy, if nothing newer has changed the
same rows or refers to them: what it made is deleted, and what it deleted or changed is as before. ID is that of one of its lines.`,
		Example: "  caddy pg-ratelimit changes undo 17",
		RunE: t.on(func(c *call) error {
			id, err := strconv.ParseInt(c.args[0], 10, 64)
			if err != nil || id < 1 {
				return &ratelimit.FieldError{Field: "ID", Value: c.args[0], Want: "the number of a change, as in: caddy pg-ratelimit changes"}
			}
			rows, err := c.db.Undo(c.ctx, id)
			return show(c, map[string]int64{"undone": id, "rows": rows}, err, func(p *page, _ map[string]int64) { p.print("The change %d is taken back. Rows: %d.\n", id, rows) })
		}),
	}
}

// digestShown is how much of a digest people see.
const digestShown = 12

// which is what was changed. A key has its id, or, if the line is too old to tell it, the begin of its digest.
func which(change *admin.Change) string {
	ref := change.Ref
	if ref == nil {
		return "all"
	}
	if change.KeyID != nil {
		if change.Kind == "key" {
			return cell(change.KeyID)
		}
		return "key/" + cell(change.KeyID)
	}
	at := strings.LastIndexByte(*ref, '/') + 1
	digest := (*ref)[at:]
	if len(digest) == 64 && strings.Trim(digest, "0123456789abcdef") == "" {
		return text((*ref)[:at] + digest[:digestShown] + "…")
	}
	return text(*ref)
}
