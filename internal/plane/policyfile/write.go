package policyfile

import (
	"bytes"
	"reflect"
	"strings"
	"unicode"

	"go.yaml.in/yaml/v3"
)

// Write returns the file of a policy. A field that has its default is left out.
func (p *Content) Write() ([]byte, error) {
	root := &yaml.Node{Kind: yaml.MappingNode}
	limits := map[string][]*yaml.Node{}
	for _, row := range p.sorted(Limits) {
		rule := row.Values[0].(string)
		limits[rule] = append(limits[rule], Tables[Limits].node(&row))
	}
	for table := range Tables {
		if !p.Has[table] || table == Limits {
			continue
		}
		list := &yaml.Node{Kind: yaml.SequenceNode}
		for _, row := range p.sorted(table) {
			n := Tables[table].node(&row)
			if table == Rules && limits[row.Values[0].(string)] != nil {
				add(n, Tables[Limits].Section, &yaml.Node{Kind: yaml.SequenceNode, Content: limits[row.Values[0].(string)]})
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
	for i, value := range r.Values {
		c := &t.Columns[i]
		if t.Kind == "limit" && i == 0 || !c.Needed && reflect.DeepEqual(value, c.Default) {
			continue
		}
		switch value := value.(type) {
		case string:
			add(n, c.Field, c.scalar(value))
		case []string:
			list := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
			for _, item := range value {
				list.Content = append(list.Content, c.scalar(item))
			}
			add(n, c.Field, list)
		}
	}
	return n
}

// scalar is a text in quotes if YAML could take it for something else.
func (c *Column) scalar(text string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.ScalarNode, Value: text}
	if c.Kind == Text || c.Kind == List || c.Kind == Digest || c.Kind == KeyDigest {
		n.Tag = "!!str"
	}
	if text != strings.TrimSpace(text) || strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
		n.Style = yaml.DoubleQuotedStyle
	}
	return n
}
