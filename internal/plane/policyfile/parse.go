package policyfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/columns"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// parser reads a file. It collects all errors.
type parser struct {
	policy Content
	errs   []error
	seen   map[string]int // the lines of rows, by table and key
}

// Parse reads a file. The error names each line that is wrong, and what it must be.
func Parse(text []byte) (*Content, error) {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	var document, more yaml.Node
	if err := decoder.Decode(&document); errors.Is(err, io.EOF) {
		return nil, errors.New("the file is empty: must have one or more of the sections " + fmt.Sprint(sections()))
	} else if err != nil {
		return nil, err
	}
	if err := decoder.Decode(&more); !errors.Is(err, io.EOF) {
		return nil, errors.Join(errors.New("the file must be one document of YAML"), err)
	}
	p := &parser{seen: map[string]int{}}
	fields(document.Content[0], sections(), func(name string, value *yaml.Node) {
		p.section(slices.IndexFunc(Tables[:], func(t Table) bool { return t.Section == name }), value, nil)
	}, func(line int, err error) { p.errs = append(p.errs, fmt.Errorf("line %d: %w", line, err)) })
	return &p.policy, errors.Join(p.errs...)
}

// sections are the names of the sections of a file.
func sections() []string {
	var all []string
	for i := range Tables {
		if i != columns.Limits {
			all = append(all, Tables[i].Section)
		}
	}
	return all
}

// resolve follows an alias to its anchor.
func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode {
		return n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// fields calls each for the fields of a mapping that have a value, and wrong for those that are unknown
// or there twice.
func fields(n *yaml.Node, known []string, each func(name string, value *yaml.Node), wrong func(line int, err error)) {
	n = resolve(n)
	if n.Kind != yaml.MappingNode {
		wrong(n.Line, errors.New("must be fields, each as NAME: VALUE"))
		return
	}
	lines := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		name := n.Content[i]
		switch {
		case !slices.Contains(known, name.Value):
			wrong(name.Line, fmt.Errorf("%s: unknown: must be one of %s", name.Value, strings.Join(known, ", ")))
		case lines[name.Value] > 0:
			wrong(name.Line, fmt.Errorf("%s: must be given once, and is on line %d as well", name.Value, lines[name.Value]))
		default:
			lines[name.Value] = name.Line
			if value := resolve(n.Content[i+1]); !isNull(value) {
				each(name.Value, value)
			}
		}
	}
}

// section reads the list of the rows of a table. rule is that of limits.
func (p *parser) section(table int, n *yaml.Node, rule any) {
	t := &Tables[table]
	p.policy.Has[table] = true
	if table == columns.Rules {
		p.policy.Has[columns.Limits] = true
	}
	if n.Kind != yaml.SequenceNode {
		p.errs = append(p.errs, fmt.Errorf("line %d: %s: must be a list, each item as - FIELD: VALUE", n.Line, t.Section))
		return
	}
	for _, item := range n.Content {
		p.row(table, item, rule)
	}
}

// row reads a row of a table.
func (p *parser) row(table int, n *yaml.Node, rule any) {
	t := &Tables[table]
	row := t.row(n.Line)
	var known []string
	for i := range t.Columns {
		known = append(known, t.Columns[i].InFile())
	}
	var limits *yaml.Node
	switch table {
	case columns.Rules:
		known = append(known, Tables[columns.Limits].Section)
	case columns.Limits:
		row.Fields["rule"] = rule
		known = known[1:]
	}
	given := map[string]bool{}
	var wrong []func() error // until the row has its name
	isWrong := func(line int, err error) {
		wrong = append(wrong, func() error { return t.aboutLine(line, &row, err) })
	}
	fields(n, known, func(name string, value *yaml.Node) {
		given[name] = true
		if table == columns.Rules && name == Tables[columns.Limits].Section {
			limits = value
			return
		}
		at := slices.IndexFunc(t.Columns, func(c Column) bool { return c.InFile() == name })
		var err error
		if row.Fields[name], err = t.read(&t.Columns[at], value); err != nil {
			isWrong(value.Line, err)
		}
	}, isWrong)
	for i := range t.Columns {
		if c := &t.Columns[i]; c.Needed && !given[c.InFile()] && !(table == columns.Limits && i == 0) {
			isWrong(n.Line, &ratelimit.FieldError{Field: c.InFile(), Want: "given, as " + kinds[c.Kind].want})
		}
	}
	key := t.Kind + "\x00" + t.key(&row)
	if p.seen[key] > 0 && wrong == nil {
		isWrong(n.Line, fmt.Errorf("must be there once, and is on line %d as well", p.seen[key]))
	}
	p.seen[key] = n.Line
	for _, err := range wrong {
		p.errs = append(p.errs, err())
	}
	p.policy.add(table, row)
	if limits != nil {
		p.section(columns.Limits, limits, row.Fields["name"])
	}
}

// read reads the value of a field.
func (t *Table) read(c *Column, n *yaml.Node) (any, error) {
	items := []*yaml.Node{n}
	if c.Kind.IsList() {
		if n.Kind != yaml.SequenceNode {
			return nil, &ratelimit.FieldError{Field: c.InFile(), Value: n.Value, Want: "a list, as in [a, b]"}
		}
		items = n.Content
	}
	var texts []string
	for _, item := range items {
		item = resolve(item)
		if item.Kind != yaml.ScalarNode || isNull(item) {
			return nil, fmt.Errorf("%s: must be %s", c.InFile(), kinds[c.Kind].want)
		}
		texts = append(texts, item.Value)
	}
	return t.Value(c, texts)
}
