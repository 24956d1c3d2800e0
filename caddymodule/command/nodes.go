package command

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

func nodesCommand(t *tool) *cobra.Command {
	return &cobra.Command{
		Use:   "nodes",
		Short: "Lists the proxies, and whether each has applied all changes",
		Long: `Lists the proxies that count in the database, and whether each has applied all changes of the policy and obeys a
pause of the limits. A proxy that stops in order is not in the list any more. One that has not been seen for 10 seconds
is gone, and is deleted from the list after a day.`,
		Example: `  caddy pg-ratelimit nodes
  caddy pg-ratelimit nodes --json`,
		Args: arguments(),
		RunE: t.on(func(ctx context.Context, db *admin.Database, cmd *cobra.Command, _ []string) error {
			nodes, err := db.Nodes(ctx)
			if err != nil {
				return err
			}
			pause, err := db.Paused(ctx)
			if err != nil {
				return err
			}
			list := table{header: []string{"NODE", "REGION", "VERSION", "STATE", "EPOCH", "CHANGES BEHIND", "PAUSED", "SEEN", "PROBLEMS"}, empty: "No proxy counts here."}
			for i := range nodes {
				n := &nodes[i]
				state := "gone"
				if n.Live {
					state = "live"
				}
				behind := none
				if n.Policy {
					behind = "unknown"
				}
				list.add(text(n.Node), optional(n.Region), optional(n.Version), state, whole(n.Epoch), optionalWhole(n.Behind, behind), yesNo(n.Paused),
					span(n.SecondsAgo)+" ago", text(strings.Join(n.Problems, "; ")))
			}
			return t.show(cmd, nodes, func(to io.Writer) error {
				if pause != nil {
					if _, err := fmt.Fprintln(to, pauseText(pause)); err != nil {
						return err
					}
				}
				return list.write(to)
			})
		}),
	}
}

func pauseText(p *admin.Pause) string {
	line := "All limits of this database are paused until " + moment(p.Until) + " by " + text(p.PausedBy)
	if p.Reason != nil {
		line += ": " + text(*p.Reason)
	}
	return line + ". Bans and block rules hold."
}

func pauseCommand(t *tool) *cobra.Command {
	lasts, reason := "", ""
	cmd := &cobra.Command{
		Use:   "pause [--for 1h]",
		Short: "Suspends all limits of the database for a while",
		Long: `Suspends the limits of rules and of configurations on the database: requests pass them, are not charged and get no
X-RateLimit headers. Bans and block rules hold. All proxies obey within a second. The pause ends by itself, or with:
caddy pg-ratelimit resume. A proxy that cannot reach the database meanwhile keeps the pause until its end.`,
		Example: `  caddy pg-ratelimit pause
  caddy pg-ratelimit pause --for 20m --reason outage`,
		Args: arguments(),
		RunE: t.on(func(ctx context.Context, db *admin.Database, cmd *cobra.Command, _ []string) error {
			d, err := duration("--for", lasts)
			if err == nil && d == 0 {
				err = &ratelimit.FieldError{Field: "--for", Value: lasts, Want: "above 0"}
			}
			if err != nil {
				return err
			}
			pause, err := db.Pause(ctx, d, reason)
			if err != nil {
				return err
			}
			return t.done(cmd, pause, pauseText(&pause))
		}),
	}
	cmd.Flags().StringVar(&lasts, "for", "1h", "how long, such as 20m or 2h")
	cmd.Flags().StringVar(&reason, "reason", "", "for people; clients do not see it")
	return cmd
}

func resumeCommand(t *tool) *cobra.Command {
	return &cobra.Command{
		Use:     "resume",
		Short:   "Ends a pause of the limits",
		Example: "  caddy pg-ratelimit resume",
		Args:    arguments(),
		RunE: t.on(func(ctx context.Context, db *admin.Database, cmd *cobra.Command, _ []string) error {
			if err := db.Resume(ctx); err != nil {
				return err
			}
			return t.done(cmd, map[string]bool{"resumed": true}, "The limits apply again.")
		}),
	}
}
