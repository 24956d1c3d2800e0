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

	"go.yaml.in/yaml/v3"
)

var policyCommand = commandSpec{
	use:   "policy",
	short: "Keeps the policy in a file",
	commands: []commandSpec{{
		use:   "export",
		short: "Prints the policy as a file, without fields that have their defaults",
		long: `The file has the tiers, the prices, the rules with their limits, and the overrides for tiers,
always in the same order. It never has a key or a ban.`,
		example: "policy export > policy.yaml",
		flags: []flag{
			toggle("users", "also users, digests of API keys, and their overrides"),
		},
		runGo: exportPolicy,
	}, {
		use:   "apply FILE",
		short: "Changes the policy to match a file",
		long: `Changes the rows that FILE names to match the file, in one transaction, and prints the changes.
A field that the file lacks gets its default. Rows that the file does not name stay, except with
--prune.`,
		example: "policy apply policy.yaml --prune --dry-run",
		flags: []flag{
			toggle("dry-run", "make, check and print the changes, and roll them back"),
			toggle("prune", "delete rows that the file does not name, in the sections that it has"),
			forcePrice,
		},
		emptyText: "The policy matches the file.",
		runGo:     applyPolicy,
	}},
}

func exportPolicy(c *invocation) error {
	policy, err := c.scalar("rate_limit_policy($1)", c.boolFlag("users"))
	if err != nil {
		return err
	}
	if c.json {
		return c.show(json.RawMessage(*policy))
	}
	warnings, err := c.scalar(`SELECT string_agg('Warning: ' || rule || ': ' || warning
	|| ': policy apply refuses this file unless the database already has the rule with this tier' || chr(10),
	'' ORDER BY rule)
FROM rate_limit_rule_warnings WHERE field = 'tiers'`)
	if err != nil {
		return err
	}
	if warnings != nil {
		fmt.Fprint(c.cmd.ErrOrStderr(), *warnings)
	}
	file, err := toYAML(*policy)
	if err == nil {
		_, err = c.cmd.OutOrStdout().Write(file)
	}
	return err
}

// applyPolicy changes the policy to match the file of the first argument, and prints the changes.
func applyPolicy(c *invocation) error {
	name, file, err := c.readFile()
	if err != nil {
		return fmt.Errorf("reading the policy: %w", err)
	}
	if c.values["document"], err = toJSON(file); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	err = c.list("SELECT * FROM rate_limit_apply(@document::jsonb, @prune::boolean, @dry_run::boolean, " +
		"@force::boolean)")
	if err != nil || c.json || !c.boolFlag("dry-run") {
		return err
	}
	return c.printf("\nNothing is changed: this was a dry run.\n")
}

// readFile returns the file of the first argument, where - is standard input, and its name in messages.
func (c *invocation) readFile() (name string, file []byte, err error) {
	if name = c.args[0]; name == "-" {
		file, err = io.ReadAll(c.cmd.InOrStdin())
		return "standard input", file, err
	}
	file, err = os.ReadFile(name)
	return name, file, err
}

// toYAML converts a JSON document to YAML. Fields are in the order of fieldOrder.
func toYAML(document string) ([]byte, error) {
	decoder := json.NewDecoder(strings.NewReader(document))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return nil, err
	}
	var encoded bytes.Buffer
	encoder := yaml.NewEncoder(&encoded)
	encoder.SetIndent(2)
	err := encoder.Encode(yamlOf(value))
	return encoded.Bytes(), err
}

// fieldOrder is the order of sections and fields in a file. "" marks the place of all names that are not
// listed.
var fieldOrder = []string{"name", "tiers", "users", "keys", "rules", "digest", "rule", "limit_name",
	"user_id", "tier", "key_id", "", "limits", "overrides"}

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
		// The tag makes the encoder quote a string that looks like another type.
		return &yaml.Node{Kind: yaml.ScalarNode, Value: value, Tag: "!!str"}
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Value: fmt.Sprint(value)}
}

// compareFields compares names by fieldOrder, then alphabetically.
func compareFields(a, b string) int {
	place := func(name string) int {
		if i := slices.Index(fieldOrder, name); i >= 0 {
			return i
		}
		return slices.Index(fieldOrder, "")
	}
	return cmp.Or(place(a)-place(b), strings.Compare(a, b))
}

// toJSON converts a YAML document to JSON.
func toJSON(file []byte) (string, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(file))
	var document, second jsonText
	if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
		return "", errors.New("the file is empty: must have one or more of the sections tiers, prices, " +
			"users, keys, rules, overrides")
	} else if err != nil {
		return "", err
	}
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		return "", errors.Join(errors.New("must be one document of YAML"), err)
	}
	return string(document.RawMessage), nil
}

// jsonText holds a YAML value as JSON. Scalars become strings, which the server converts to its types.
type jsonText struct{ json.RawMessage }

// UnmarshalYAML implements yaml.Unmarshaler. The decoder resolves aliases and rejects duplicate names. The
// decoder does not call UnmarshalYAML for a null. The elements are therefore pointers, so that a null becomes
// nil.
func (t *jsonText) UnmarshalYAML(n *yaml.Node) (err error) {
	var value any = &n.Value
	switch n.Kind {
	case yaml.MappingNode:
		value = &map[string]*jsonText{}
		err = n.Decode(value)
	case yaml.SequenceNode:
		value = &[]*jsonText{}
		err = n.Decode(value)
	}
	if err == nil {
		t.RawMessage, err = json.Marshal(value)
	}
	return err
}
