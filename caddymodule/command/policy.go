package command

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
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

The fields are the columns of the tables. One that has its default is left out.`,
		example: `  caddy pg-ratelimit policy export > policy.yaml
  caddy pg-ratelimit policy export --users > all.yaml`,
		flags: []flag{{name: "users", value: false, usage: "also users, digests of API keys, and their overrides"}},
		do:    exportPolicy,
	}, {
		use:   "diff FILE",
		short: "Shows what policy apply would change",
		long: `Shows what policy apply would change, and changes nothing: it makes the changes and takes them back,
so that everything is checked. FILE may be - for standard input. The last line has the command that
makes exactly these changes, or fails if the database or the file has changed meanwhile.`,
		example: `  caddy pg-ratelimit policy diff policy.yaml
  caddy pg-ratelimit policy diff policy.yaml --prune --json`,
		flags: []flag{pruneFlag},
		do: func(c *call) error {
			plan, err := c.applyPolicy(&admin.PolicyOptions{DryRun: true})
			return show(c, plan, err, func(p *page, plan *admin.PolicyPlan) {
				if addPlan(p, plan); len(plan.Changes) > 0 {
					flags := map[bool]string{true: " --prune"}[c.is("prune")]
					p.print("\nTo make exactly these changes: caddy pg-ratelimit policy apply %s%s --expect %s\n", c.args[0], flags, plan.Expect)
				}
			})
		},
	}, {
		use:   "apply FILE",
		short: "Makes the policy as a file has it",
		long: `Makes the rows that FILE names as the file has them, in one transaction, and prints what it changed.
FILE may be - for standard input. A field that the file lacks gets its default. Rows that the file
does not name stay. --prune deletes them, in the sections that the file has: a file without the
section tiers never deletes a tier, and one without users no override for a user. No other command
can change the policy meanwhile. A rule that proxies could not use is refused, and with it the whole
file.

--dry-run makes the changes and takes them back, so that everything is checked. With --replay 7d it
also decides the requests in the audit log again, with the limits of the file, for each rule that
changes: see replay --help for what that can say. It replays changes of limits, overrides and costs,
and not of conditions, tiers of users or priorities.`,
		example: `  caddy pg-ratelimit policy apply policy.yaml
  caddy pg-ratelimit policy apply policy.yaml --prune --dry-run
  caddy pg-ratelimit policy apply policy.yaml --dry-run --replay 7d`,
		flags: []flag{
			{name: "dry-run", value: false, usage: "check the file and print what would change, and change nothing"},
			{name: "expect", value: "", usage: "fail if the changes are others than those of policy diff, which prints this"},
			{name: "replay", value: "", read: anAge, usage: "with --dry-run: replay the requests since 24h, 7d … or a time"},
			pruneFlag,
		},
		do: func(c *call) error {
			o := &admin.PolicyOptions{DryRun: c.is("dry-run"), Expect: c.text("expect")}
			if since := c.text("replay"); since != "" {
				if !o.DryRun {
					return &ratelimit.FieldError{Field: "--replay", Value: since, Want: "with --dry-run"}
				}
				period, err := by(c, admin.ParsePeriod, since, "")
				if err != nil {
					return err
				}
				o.Replay = &period
			}
			plan, err := c.applyPolicy(o)
			return show(c, plan, err, func(p *page, plan *admin.PolicyPlan) { addApplied(p, plan, o.DryRun) })
		},
	}},
}

var pruneFlag = flag{name: "prune", value: false, usage: "delete rows that the file does not name, in the sections that it has"}

func exportPolicy(c *call) error {
	found, err := c.db.Ask(c.ctx, "SELECT rate_limit_policy($1)::text AS policy", c.is("users"))
	if err != nil {
		return err
	}
	warnings, err := c.db.RuleWarnings(c.ctx)
	if err != nil {
		return err
	}
	for _, w := range warnings {
		if w.Field == "tiers" {
			fmt.Fprintf(c.cmd.ErrOrStderr(), "Warning: %s: %s: a database without the rule will refuse the file\n", text(w.Rule), w.Warning)
		}
	}
	file, err := toYAML(found[0].Text("policy"))
	if err == nil {
		_, err = c.cmd.OutOrStdout().Write(file)
	}
	return err
}

// applyPolicy applies the file that is the argument.
func (c *call) applyPolicy(o *admin.PolicyOptions) (*admin.PolicyPlan, error) {
	name := c.args[0]
	read := func() ([]byte, error) { return os.ReadFile(name) }
	if name == "-" {
		name, read = "standard input", func() ([]byte, error) { return io.ReadAll(c.cmd.InOrStdin()) }
	}
	file, err := read()
	if err != nil {
		return nil, fmt.Errorf("reading the policy: %w", err)
	}
	document, err := toJSON(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	o.Prune = c.is("prune")
	return c.db.ApplyPolicy(c.ctx, document, o)
}

// addApplied adds what apply has done.
func addApplied(p *page, plan *admin.PolicyPlan, dryRun bool) {
	if addPlan(p, plan); dryRun && len(plan.Changes) > 0 {
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

// addPlan adds the changes of a plan.
func addPlan(p *page, plan *admin.PolicyPlan) {
	addList(p, plan.Changes, fields[admin.Row]("SECTION section, NAME name, WHAT what, BEFORE before, AFTER after"), "The policy is as the file has it.")
}

// toYAML is a document of JSON as YAML: the fields that name a row first.
func toYAML(document string) ([]byte, error) {
	decoder := json.NewDecoder(strings.NewReader(document))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, err
	}
	var text bytes.Buffer
	encoder := yaml.NewEncoder(&text)
	encoder.SetIndent(2)
	err := encoder.Encode(yamlOf(value))
	return text.Bytes(), err
}

// order has the sections and the fields that come first, and those that come last.
var order = []string{"name", "tiers", "users", "keys", "rules", "digest", "rule", "limit_name", "user_id", "tier", "key_id", "", "limits", "overrides"}

func yamlOf(value any) *yaml.Node {
	switch value := value.(type) {
	case map[string]any:
		n := &yaml.Node{Kind: yaml.MappingNode}
		for _, name := range slices.SortedFunc(maps.Keys(value), compareFields) {
			n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: name}, yamlOf(value[name]))
		}
		return n
	case []any:
		n := &yaml.Node{Kind: yaml.SequenceNode}
		for _, item := range value {
			if _, isRow := item.(map[string]any); !isRow {
				n.Style = yaml.FlowStyle
			}
			n.Content = append(n.Content, yamlOf(item))
		}
		return n
	case string:
		n := &yaml.Node{Kind: yaml.ScalarNode, Value: value, Tag: "!!str"} // in quotes if it could be something else
		if value != strings.TrimSpace(value) || strings.ContainsFunc(value, func(r rune) bool { return !unicode.IsPrint(r) }) {
			n.Style = yaml.DoubleQuotedStyle
		}
		return n
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Value: fmt.Sprint(value)}
}

// compareFields sorts fields by order, and others by their names, in the place of "".
func compareFields(a, b string) int {
	place := func(name string) int {
		if at := slices.Index(order, name); at >= 0 {
			return at
		}
		return slices.Index(order, "")
	}
	return cmp.Or(place(a)-place(b), strings.Compare(a, b))
}

// toJSON is a document of YAML as JSON. Values are texts, which the server reads as its types.
func toJSON(file []byte) (string, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(file))
	var document, more yaml.Node
	if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
		return "", errors.New("the file is empty: must have one or more of the sections tiers, users, keys, rules, overrides")
	} else if err != nil {
		return "", err
	}
	if err := decoder.Decode(&more); !errors.Is(err, io.EOF) {
		return "", errors.Join(errors.New("must be one document of YAML"), err)
	}
	value, err := valueOf(document.Content[0])
	if err != nil {
		return "", err
	}
	text, err := json.Marshal(value)
	return string(text), err
}

func valueOf(n *yaml.Node) (any, error) {
	switch n.Kind {
	case yaml.AliasNode:
		return valueOf(n.Alias)
	case yaml.MappingNode:
		fields := map[string]any{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			name := n.Content[i]
			if _, isThere := fields[name.Value]; isThere {
				return nil, fmt.Errorf("line %d: %s: must be given once", name.Line, name.Value)
			}
			var err error
			if fields[name.Value], err = valueOf(n.Content[i+1]); err != nil {
				return nil, err
			}
		}
		return fields, nil
	case yaml.SequenceNode:
		list := []any{}
		for _, item := range n.Content {
			value, err := valueOf(item)
			if err != nil {
				return nil, err
			}
			list = append(list, value)
		}
		return list, nil
	}
	if n.ShortTag() == "!!null" {
		return nil, nil
	}
	return n.Value, nil
}
