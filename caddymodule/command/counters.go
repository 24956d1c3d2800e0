package command

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
)

func usageTable(usage []admin.Usage) table {
	list := table{header: []string{"PREFIX", "KEY", "USED", "OF", "PERCENT", "ALGORITHM"}, empty: "Nothing is used."}
	for i := range usage {
		u := &usage[i]
		list.add(text(u.Prefix()), text(hideKeys(u.Key)), whole(u.Used), optionalWhole(u.Quota, "unlimited"), percent(u.Percent), u.Algorithm)
	}
	return list
}

func counterTable(counters []admin.Counter) table {
	list := table{header: []string{"PREFIX", "KEY", "TABLE", "COUNT", "BEFORE", "SINCE", "TOKENS", "REFILLED", "HITS", "EXPIRES", "USED", "OF"}, empty: "There are no counters."}
	for i := range counters {
		c := &counters[i]
		in, tokens, hits, used, quota := "ephemeral", none, none, none, none
		if c.Durable {
			in = "durable"
		}
		if c.Tokens != nil {
			tokens = whole(int64(*c.Tokens))
		}
		if c.Hits != nil {
			hits = whole(int64(*c.Hits))
		}
		if c.Usage != nil {
			used, quota = whole(c.Usage.Used), optionalWhole(c.Usage.Quota, "unlimited")
		}
		list.add(text(c.Prefix), text(hideKeys(c.Key)), in, optionalWhole(c.Count, none), optionalWhole(c.PrevCount, none), optionalMoment(c.WindowStart, none),
			tokens, optionalMoment(c.LastRefill, none), hits, moment(c.Expires), used, quota)
	}
	return list
}

func topCommand(t *tool) *cobra.Command {
	prefix, most := "", number(20)
	var in times
	cmd := &cobra.Command{
		Use:   "top [--prefix PREFIX] [--since 1h] [-n 20]",
		Short: "Lists the counters that are closest to their limits, or with --since the busiest senders",
		Long: `Lists the counters of rules that are closest to their limits. --prefix restricts the list to
prefixes that begin with a text, such as rule/free or rule/free/per_hour. Any other prefix is
that of a limit in the configuration of a proxy: its counters with the highest counts come
first.

--since lists what the audit log has since then: the counters and users with the most requests,
and how many of these were refused. Then --prefix is rule/ for all rules, rule/RULE,
rule/RULE/LIMIT, or that of a limit in a configuration. A sample is counted as what it stands
for. ` + recording + `
So REQUESTS are then refusals only.`,
		Example: `  caddy pg-ratelimit top
  caddy pg-ratelimit top --since 1h
  caddy pg-ratelimit top --prefix rule/free/ -n 5
  caddy pg-ratelimit top --prefix web`,
		Args: arguments(),
		RunE: t.on(func(ctx context.Context, db *admin.Database, cmd *cobra.Command, _ []string) error {
			if err := most.check(); err != nil {
				return err
			}
			if in.since != "" {
				return t.topSince(ctx, db, cmd, &in, prefix, int(most))
			}
			if in.until != "" {
				return errNoSince
			}
			if prefix != "" && !strings.HasPrefix(prefix, "rule/") {
				counters, err := db.TopCounters(ctx, prefix, int(most))
				if err != nil {
					return err
				}
				return t.showTable(cmd, counters, counterTable(counters))
			}
			usage, err := db.Top(ctx, prefix, int(most))
			if err != nil {
				return err
			}
			return t.showTable(cmd, usage, usageTable(usage))
		}),
	}
	cmd.Flags().StringVar(&prefix, "prefix", "", "counters of this prefix only")
	in.flags(cmd, "", "requests")
	most.flag(cmd)
	t.mayComplete(cmd, "prefix", t.completePrefix)
	return cmd
}

// onCounter makes an action on one counter the work of a command with the arguments PREFIX and
// KEY.
func (t *tool) onCounter(do func(ctx context.Context, db *admin.Database, cmd *cobra.Command, prefix, key string) error) func(*cobra.Command, []string) error {
	return t.on(func(ctx context.Context, db *admin.Database, cmd *cobra.Command, args []string) error {
		key, err := secret(cmd, "KEY", args[1])
		if err != nil {
			return err
		}
		return do(ctx, db, cmd, args[0], key)
	})
}

func getCommand(t *tool) *cobra.Command {
	return &cobra.Command{
		Use:   "get PREFIX KEY",
		Short: "Shows a counter",
		Long: `Shows the counter of a prefix and a key. The prefix of a rule's limit is rule/RULE/LIMIT. The
key may be one that is stored as a digest. KEY may be "-", to read it from standard input.`,
		Example: `  caddy pg-ratelimit get rule/free/per_hour acme
  caddy pg-ratelimit get web 192.0.2.1
  caddy pg-ratelimit get per-key - < key.txt`,
		Args:              arguments("PREFIX", "KEY"),
		ValidArgsFunction: t.completeOneOf(t.completePrefix),
		RunE: t.onCounter(func(ctx context.Context, db *admin.Database, cmd *cobra.Command, prefix, key string) error {
			counters, err := db.Counters(ctx, prefix, key)
			if err != nil {
				return err
			}
			return t.showTable(cmd, counters, counterTable(counters))
		}),
	}
}

func resetCommand(t *tool) *cobra.Command {
	return &cobra.Command{
		Use:   "reset PREFIX KEY",
		Short: "Gives a key its full quota back",
		Long: `Deletes the counter of a prefix and a key, as get finds it, so that the full quota is back. A
proxy that has refused the key within the last second may refuse it for up to a second more.`,
		Example: `  caddy pg-ratelimit reset rule/free/per_hour acme
  caddy pg-ratelimit reset per-key - < key.txt`,
		Args:              arguments("PREFIX", "KEY"),
		ValidArgsFunction: t.completeOneOf(t.completePrefix),
		RunE: t.onCounter(func(ctx context.Context, db *admin.Database, cmd *cobra.Command, prefix, key string) error {
			if err := db.Reset(ctx, prefix, key); err != nil {
				return err
			}
			return t.change(cmd, "counter of", prefix, "reset")
		}),
	}
}
