package command

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policyfile"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

func policyCommand(t *tool) *cobra.Command {
	return group(&cobra.Command{
		Use:   "policy",
		Short: "Keeps the policy in a file",
		Example: `  caddy pg-ratelimit policy export > policy.yaml
  caddy pg-ratelimit policy diff policy.yaml
  caddy pg-ratelimit policy apply policy.yaml`,
	}, policyExport(t), policyDiff(t), policyApply(t))
}

func policyExport(t *tool) *cobra.Command {
	users := false
	cmd := &cobra.Command{
		Use:   "export [--users]",
		Short: "Prints the policy as a file",
		Long: `Prints the tiers, the rules with their limits, and the overrides for tiers as YAML, always in the
same order. With --users also the users, the digests of their API keys, and their overrides.
The file never has a key. Bans, counters and the history are not part of it.

A field that has its default is left out.`,
		Example: `  caddy pg-ratelimit policy export > policy.yaml
  caddy pg-ratelimit policy export --users > all.yaml`,
		RunE: t.on(func(c *call) error {
			found, unknown, err := c.db.ExportPolicy(c.ctx, users)
			if err != nil {
				return err
			}
			for _, rule := range slices.Sorted(maps.Keys(unknown)) {
				fmt.Fprintf(c.cmd.ErrOrStderr(), "Warning: %s: tiers: %s: not in rate_limit_tiers: a database without the rule will refuse the file\n", text(rule), unknown[rule])
			}
			file, err := found.Write()
			if err == nil {
				_, err = c.cmd.OutOrStdout().Write(file)
			}
			return err
		}),
	}
	cmd.Flags().BoolVar(&users, "users", false, "also users, digests of API keys, and their overrides")
	return cmd
}

// policyFlags are the flags of diff and apply.
func policyFlags(cmd *cobra.Command, o *admin.PolicyOptions) *cobra.Command {
	cmd.Flags().BoolVar(&o.Users, "users", false, "the file has users, digests of API keys, and their overrides")
	cmd.Flags().BoolVar(&o.Prune, "prune", false, "delete rows that the file does not name, in the sections that it has")
	cmd.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return []string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt
	}
	return cmd
}

func policyDiff(t *tool) *cobra.Command {
	o := &admin.PolicyOptions{}
	return policyFlags(&cobra.Command{
		Use:   "diff FILE",
		Short: "Shows what policy apply would change",
		Long: `Shows what policy apply would change, and changes nothing. FILE may be - for standard input.
The last line has the command that makes exactly these changes, or fails if the database or
the file has changed meanwhile.`,
		Example: `  caddy pg-ratelimit policy diff policy.yaml
  caddy pg-ratelimit policy diff policy.yaml --prune --json`,
		RunE: t.on(func(c *call) error {
			want, err := c.policyFile()
			if err != nil {
				return err
			}
			plan, err := c.db.DiffPolicy(c.ctx, want, o)
			return show(c, plan, err, func(p *page, plan *admin.PolicyPlan) {
				if !addPlan(p, plan) {
					return
				}
				flags := ""
				if o.Users {
					flags += " --users"
				}
				if o.Prune {
					flags += " --prune"
				}
				p.print("\nTo make exactly these changes: caddy pg-ratelimit policy apply %s%s --expect %s\n", c.args[0], flags, plan.Expect)
			})
		}),
	}, o)
}

func policyApply(t *tool) *cobra.Command {
	o := &admin.PolicyOptions{}
	replay := ""
	cmd := policyFlags(&cobra.Command{
		Use:   "apply FILE",
		Short: "Makes the policy as a file has it",
		Long: `Makes the rows that FILE names as the file has them, in one transaction, and prints what it changed.
FILE may be - for standard input. A field that the file lacks gets its default. Rows that the file
does not name stay. --prune deletes them, in the sections that the file has: a file without the
section tiers never deletes a tier. No other command can change the policy meanwhile. A rule that
proxies could not use is refused, and with it the whole file.

--dry-run makes the changes and takes them back, so that everything is checked. With --replay 7d it
also decides the requests in the audit log again, with the limits of the file, for each rule that
changes: see replay --help for what that can say. It replays changes of limits, overrides and costs,
and not of conditions, tiers of users or priorities.`,
		Example: `  caddy pg-ratelimit policy apply policy.yaml
  caddy pg-ratelimit policy apply policy.yaml --prune --dry-run
  caddy pg-ratelimit policy apply policy.yaml --dry-run --replay 7d`,
		RunE: t.on(func(c *call) error {
			want, err := c.policyFile()
			if err != nil {
				return err
			}
			if replay != "" && !o.DryRun {
				return &ratelimit.FieldError{Field: "--replay", Value: replay, Want: "with --dry-run"}
			}
			if replay != "" {
				now, err := c.db.Now(c.ctx)
				if err != nil {
					return err
				}
				period, err := admin.ParsePeriod(replay, "", now)
				var wrong *ratelimit.FieldError
				if errors.As(err, &wrong) {
					wrong.Field = "--replay"
				}
				if err != nil {
					return err
				}
				o.Replay = &period
			}
			plan, err := c.db.ApplyPolicy(c.ctx, want, o)
			if err != nil {
				return err
			}
			for i := range plan.Replays {
				hideReplay(plan.Replays[i].Replay)
			}
			return show(c, plan, nil, func(p *page, plan *admin.PolicyPlan) { addApplied(p, plan, o) })
		}),
	}, o)
	cmd.Flags().BoolVar(&o.DryRun, "dry-run", false, "check the file and print what would change, and change nothing")
	cmd.Flags().StringVar(&o.Expect, "expect", "", "fail if the changes are others than those of policy diff, which prints this")
	cmd.Flags().StringVar(&replay, "replay", "", "with --dry-run: replay the requests since 24h, 7d … or a time")
	return cmd
}

// addApplied adds what apply has done.
func addApplied(p *page, plan *admin.PolicyPlan, o *admin.PolicyOptions) {
	if addPlan(p, plan) && o.DryRun {
		p.print("\nNothing is changed: this was a dry run.\n")
	}
	for i := range plan.Replays {
		r := &plan.Replays[i]
		p.print("\n")
		if r.Replay == nil {
			p.print("%s: no replay: %s\n", text(r.Rule), text(r.Problem))
		} else {
			addReplay(p, r.Replay)
		}
	}
}

// addPlan adds the changes of a plan, and says whether there are any.
func addPlan(p *page, plan *admin.PolicyPlan) bool {
	var made, kept []policyfile.Difference
	for _, c := range plan.Changes {
		if c.Outcome == policyfile.Kept {
			kept = append(kept, c)
		} else {
			made = append(made, c)
		}
	}
	addList(p, made, func(c *policyfile.Difference) row {
		return row{"KIND", c.Kind, "NAME", c.Name, "OUTCOME", c.Outcome, "WHAT", strings.Join(c.What, ", ")}
	}, "The policy is as the file has it.")
	addSection(p, "In the database and not in the file (--prune deletes them):", kept, func(c *policyfile.Difference) row {
		return row{"KIND", c.Kind, "NAME", c.Name}
	})
	return len(made) > 0
}

// policyFile reads the file that is the argument.
func (c *call) policyFile() (*policyfile.Content, error) {
	name := c.args[0]
	read := func() ([]byte, error) { return os.ReadFile(name) }
	if name == "-" {
		name, read = "standard input", func() ([]byte, error) { return io.ReadAll(c.cmd.InOrStdin()) }
	}
	file, err := read()
	if err != nil {
		return nil, fmt.Errorf("reading the policy: %w", err)
	}
	want, err := policyfile.Parse(file)
	if err != nil {
		return nil, errors.New(name + ":\n" + err.Error())
	}
	return want, nil
}
