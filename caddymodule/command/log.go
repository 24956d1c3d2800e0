package command

import (
	"strings"

	"github.com/spf13/cobra"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

func changesCommand(t *tool) *cobra.Command {
	since, most := "", number(100)
	cmd := &cobra.Command{
		Use:   "changes [--since 1h] [-n 100]",
		Short: "Lists the changes of the policy, the latest first",
		Long: `Lists the changes of the policy with the role that made each, the latest first. The database
keeps changes for 30 days. --json has the rows before and after.`,
		Example: `  caddy pg-ratelimit changes
  caddy pg-ratelimit changes --since 7d -n 1000 --json`,
		RunE: t.on(func(c *call) error {
			d, err := duration("--since", since)
			if err != nil {
				return err
			}
			if err := most.check(); err != nil {
				return err
			}
			changes, err := c.db.Changes(c.ctx, d, int(most))
			return showList(c, changes, err, func(change *admin.Change) row {
				return row{"AT", change.At, "BY", change.By, "KIND", change.Kind, "WHICH", which(change), "WHAT", strings.Join(change.What, ", ")}
			}, "Nothing was changed.")
		}),
	}
	cmd.Flags().StringVar(&since, "since", "1h", "changes of the last 30m, 24h, 7d …")
	most.flag(cmd)
	return cmd
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
