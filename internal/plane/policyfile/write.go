package policyfile

import (
	"bytes"
	"reflect"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/columns"
)

// Write returns the file of a policy. A field that has its default is left out.
func (p *Content) Write() ([]byte, error) {
	root := &yaml.Node{Kind: yaml.MappingNode}
	limits := map[string][]*yaml.Node{}
	for _, row := range p.sorted(columns.Limits) {
		rule := row.Text("rule")
		limits[rule] = append(limits[rule], Tables[columns.Limits].node(&row))
	}
	for table := range Tables {
		if !p.Has[table] || table == columns.Limits {
			continue
		}
		list := &yaml.Node{Kind: yaml.SequenceNode}
		for _, row := range p.sorted(table) {
			n := Tables[table].node(&row)
			if its := limits[row.Text("name")]; table == columns.Rules && its != nil {
				add(n, Tables[columns.Limits].Section, &yaml.Node{Kind: yaml.SequenceNode, Content: its})
			}
			list.Content = append(list.Content, n)
		}
		add(root, Tables[table].Section, list)
	}
	var text bytes.Buffer
	encoder := yaml.NewEncoder(&text)
	encoder.SetIndent(2)
	err := encoder.Encode(root)
	return text.Bytes(), err
}

// add adds a field to a mapping.
func add(n *yaml.Node, name string, value *yaml.Node) {
	n.Content = append(n.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: name}, value)
}

func (t *Table) node(r *Row) *yaml.Node {
	n := &yaml.Node{Kind: yaml.MappingNode}
	for i := range t.Columns {
		c := &t.Columns[i]
		value := r.Fields[c.InFile()]
		if t.Kind == "limit" && i == 0 || !c.Needed && reflect.DeepEqual(value, c.Default) {
			continue
		}
		switch value := value.(type) {
		case string:
			add(n, c.InFile(), scalar(c, value))
		case []string:
			list := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
			for _, item := range value {
				list.Content = append(list.Content, scalar(c, item))
			}
			add(n, c.InFile(), list)
		}
	}
	return n
}

// scalar is a text in quotes if YAML could take it for something else.
func scalar(c *Column, text string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Value: text}
	if c.Kind == columns.Text || c.Kind == columns.List || c.Kind == columns.Digest || c.Kind == columns.KeyDigest {
		n.Tag = "!!str"
	}
	if text != strings.TrimSpace(text) || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		n.Style = yaml.DoubleQuotedStyle
	}
	return n
}
