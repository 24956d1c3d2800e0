package command

import (
	"context"
	"io"
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
		Args: arguments(),
		RunE: t.on(func(ctx context.Context, db *admin.Database, cmd *cobra.Command, _ []string) error {
			d, err := duration("--since", since)
			if err != nil {
				return err
			}
			if err := most.check(); err != nil {
				return err
			}
			changes, err := db.Changes(ctx, d, int(most))
			if err != nil {
				return err
			}
			return t.show(cmd, changes, func(to io.Writer) error {
				list := table{header: []string{"AT", "BY", "KIND", "WHICH", "WHAT"}, empty: "Nothing was changed."}
				for i := range changes {
					c := &changes[i]
					what, err := c.What()
					if err != nil {
						return err
					}
					list.add(moment(c.At), text(c.By), c.Kind, which(c.Ref), text(strings.Join(what, ", ")))
				}
				return list.write(to)
			})
		}),
	}
	cmd.Flags().StringVar(&since, "since", "1h", "changes of the last 30m, 24h, 7d …")
	most.flag(cmd)
	return cmd
}

// digestShown is how much of a digest people see.
const digestShown = 12

// which is what was changed. The digest of a key is shortened.
func which(ref *string) string {
	if ref == nil {
		return "all"
	}
	at := strings.LastIndexByte(*ref, '/') + 1
	digest := (*ref)[at:]
	if len(digest) == 64 && strings.Trim(digest, "0123456789abcdef") == "" {
		return text((*ref)[:at] + digest[:digestShown] + "…")
	}
	return text(*ref)
}
