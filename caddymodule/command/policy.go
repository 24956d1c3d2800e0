package command

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policyfile"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

var policyCommand = entry{
	use:   "policy",
	short: "Keeps the policy in a file",
	commands: []entry{{
		use:   "export [--users]",
		short: "Prints the policy as a file",
		long: `Prints the tiers, the rules with their limits, and the overrides for tiers as YAML, always in the
same order. With --users also the users, the digests of their API keys, and their overrides.
The file never has a key. Bans, counters and the history are not part of it.

A field that has its default is left out.`,
		example: `  caddy pg-ratelimit policy export > policy.yaml
  caddy pg-ratelimit policy export --users > all.yaml`,
		flags: []flag{{name: "users", value: false, usage: "also users, digests of API keys, and their overrides"}},
		do:    exportPolicy,
	}, {
		use:   "diff FILE",
		short: "Shows what policy apply would change",
		long: `Shows what policy apply would change, and changes nothing. FILE may be - for standard input.
The last line has the command that makes exactly these changes, or fails if the database or
the file has changed meanwhile.`,
		example: `  caddy pg-ratelimit policy diff policy.yaml
  caddy pg-ratelimit policy diff policy.yaml --prune --json`,
		flags: policyFlags,
		do: func(c *call) error {
			want, err := c.policyFile()
			if err != nil {
				return err
			}
			o := c.policyOptions()
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
		},
	}, {
		use:   "apply FILE",
		short: "Makes the policy as a file has it",
		long: `Makes the rows that FILE names as the file has them, in one transaction, and prints what it changed.
FILE may be - for standard input. A field that the file lacks gets its default. Rows that the file
does not name stay. --prune deletes them, in the sections that the file has: a file without the
section tiers never deletes a tier. No other command can change the policy meanwhile. A rule that
proxies could not use is refused, and with it the whole file.

--dry-run makes the changes and takes them back, so that everything is checked. With --replay 7d it
also decides the requests in the audit log again, with the limits of the file, for each rule that
changes: see replay --help for what that can say. It replays changes of limits, overrides and costs,
and not of conditions, tiers of users or priorities.`,
		example: `  caddy pg-ratelimit policy apply policy.yaml
  caddy pg-ratelimit policy apply policy.yaml --prune --dry-run
  caddy pg-ratelimit policy apply policy.yaml --dry-run --replay 7d`,
		flags: append([]flag{
			{name: "dry-run", value: false, usage: "check the file and print what would change, and change nothing"},
			{name: "expect", value: "", usage: "fail if the changes are others than those of policy diff, which prints this"},
			{name: "replay", value: "", read: anAge, usage: "with --dry-run: replay the requests since 24h, 7d … or a time"},
		}, policyFlags...),
		do: applyPolicy,
	}},
}

// policyFlags are the flags of diff and apply.
var policyFlags = []flag{
	{name: "users", value: false, usage: "the file has users, digests of API keys, and their overrides"},
	{name: "prune", value: false, usage: "delete rows that the file does not name, in the sections that it has"},
}

func (c *call) policyOptions() *admin.PolicyOptions {
	return &admin.PolicyOptions{Users: c.is("users"), Prune: c.is("prune")}
}

func exportPolicy(c *call) error {
	found, unknown, err := c.db.ExportPolicy(c.ctx, c.is("users"))
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
}

func applyPolicy(c *call) error {
	want, err := c.policyFile()
	if err != nil {
		return err
	}
	o := c.policyOptions()
	o.DryRun, o.Expect = c.is("dry-run"), c.text("expect")
	if replay := c.text("replay"); replay != "" {
		if !o.DryRun {
			return &ratelimit.FieldError{Field: "--replay", Value: replay, Want: "with --dry-run"}
		}
		period, err := by(c, admin.ParsePeriod, replay, "")
		if err != nil {
			return err
		}
		o.Replay = &period
	}
	plan, err := c.db.ApplyPolicy(c.ctx, want, o)
	if err != nil {
		return err
	}
	return show(c, plan, nil, func(p *page, plan *admin.PolicyPlan) { addApplied(p, plan, o) })
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
