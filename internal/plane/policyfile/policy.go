package policyfile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/columns"
)

// Row is a row of a table.
type Row struct {
	// Values are those of the columns of the table, in their order.
	Values []any
	// Line is that of the file; 0 for a row of the database.
	Line int

	key string // the fields that name the row
}

// Content is the policy that a file or a database has.
type Content struct {
	Rows [columns.Count][]Row
	// Has says which sections there are. A section may be empty.
	Has [columns.Count]bool
}

// AddRow adds a row of a database. Each value is nil, a string or a []any of strings.
func (p *Content) AddRow(table int, values []any) error {
	t := &Tables[table]
	row := Row{Values: make([]any, len(values))}
	for i, value := range values {
		c := &t.Columns[i]
		var texts []string
		switch value := value.(type) {
		case nil:
			row.Values[i] = c.Default
			continue
		case string:
			texts = []string{value}
		case []any:
			for _, item := range value {
				texts = append(texts, fmt.Sprint(item))
			}
		}
		var err error
		if row.Values[i], err = t.Value(c, texts); err != nil {
			return fmt.Errorf("a row of %s: %w", t.Name, err)
		}
	}
	p.add(table, row)
	return nil
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
			text, _ := r.Values[i].(string)
			key = append(key, text)
		}
	}
	return strings.Join(key, "\x00")
}

// sorted are the rows of a table in the order of their keys.
func (p *Content) sorted(table int) []Row {
	return slices.SortedFunc(slices.Values(p.Rows[table]), func(a, b Row) int { return cmp.Compare(a.key, b.key) })
}
