package policyfile

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/columns"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
)

// Column is a column of a table that the file has as a field.
type Column = columns.Column

// Table is a table of the policy.
type Table struct{ *columns.Table }

// Tables are all tables, by their numbers in package columns.
var Tables = func() (all [columns.Count]Table) {
	for i := range all {
		all[i] = Table{&columns.Tables[i]}
	}
	return all
}()

// checks are those of columns whose values are neither of a kind nor one of a few, by table and field.
var checks = map[string]func(text string) error{
	"rules settle": func(text string) error { _, err := policy.ParseSettle(text); return err },
}

// Row is a row of a table.
type Row struct {
	// Fields are the values of all columns of the table, by their names in a file. Those that are keys do not change.
	Fields map[string]any

	key string // the fields that name the row
}

// Text is the value of a field that is a text, or "".
func (r *Row) Text(field string) string {
	text, _ := r.Fields[field].(string)
	return text
}

// row is a row with the defaults of the columns.
func (t *Table) row() Row {
	r := Row{Fields: map[string]any{}}
	for i := range t.Columns {
		r.Fields[t.Columns[i].InFile()] = t.Columns[i].Default
	}
	return r
}

// Content are rows of the policy, by tables.
type Content struct{ Rows [columns.Count][]Row }

// AddRow adds a row of a database. Each value is nil, a string or a []any of strings.
func (p *Content) AddRow(table int, values []any) error {
	t := &Tables[table]
	row := t.row()
	for i, value := range values {
		c := &t.Columns[i]
		var texts []string
		switch value := value.(type) {
		case nil:
			continue
		case string:
			texts = []string{value}
		case []any:
			for _, item := range value {
				texts = append(texts, fmt.Sprint(item))
			}
		}
		var err error
		if row.Fields[c.InFile()], err = t.Value(c, texts); err != nil {
			return fmt.Errorf("a row of %s: %w", t.Name, err)
		}
	}
	p.add(table, row)
	return nil
}

// Row returns the row that keys name, in the order of their columns, and reports whether it is new: then it has the
// defaults. It is valid until the next row is made.
func (p *Content) Row(table int, keys ...any) (r *Row, isNew bool) {
	t := &Tables[table]
	row := t.row()
	for i := range t.Columns {
		if t.Columns[i].Key && len(keys) > 0 {
			row.Fields[t.Columns[i].InFile()], keys = keys[0], keys[1:]
		}
	}
	name := t.key(&row)
	at := slices.IndexFunc(p.Rows[table], func(r Row) bool { return r.key == name })
	if isNew = at < 0; isNew {
		at = len(p.Rows[table])
		p.add(table, row)
	}
	return &p.Rows[table][at], isNew
}

// Delete deletes a row.
func (p *Content) Delete(table int, r *Row) {
	name := r.key
	p.Rows[table] = slices.DeleteFunc(p.Rows[table], func(r Row) bool { return r.key == name })
}

// Clone is a copy, so that a change of the one does not change the other.
func (p *Content) Clone() *Content {
	other := &Content{}
	for table := range p.Rows {
		for _, r := range p.Rows[table] {
			r.Fields = maps.Clone(r.Fields)
			other.Rows[table] = append(other.Rows[table], r)
		}
	}
	return other
}

func (p *Content) add(table int, row Row) {
	row.key = Tables[table].key(&row)
	p.Rows[table] = append(p.Rows[table], row)
}

// key has the fields that name a row.
func (t *Table) key(r *Row) string {
	var key []string
	for i := range t.Columns {
		if t.Columns[i].Key {
			key = append(key, r.Text(t.Columns[i].InFile()))
		}
	}
	return strings.Join(key, "\x00")
}

// sorted are the rows of a table in the order of their keys.
func (p *Content) sorted(table int) []Row {
	return slices.SortedFunc(slices.Values(p.Rows[table]), func(a, b Row) int { return cmp.Compare(a.key, b.key) })
}
