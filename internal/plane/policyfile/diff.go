package policyfile

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/columns"
)

// What becomes of a row.
const (
	Created = "created"
	Changed = "changed"
	Deleted = "deleted"
	Kept    = "kept" // it is in the database and not in the file
)

// Difference is what becomes of a row.
type Difference struct {
	Kind    string         `json:"kind"`
	Name    string         `json:"name"`
	Outcome string         `json:"outcome"`
	Before  map[string]any `json:"before"`
	After   map[string]any `json:"after"`
	// What says what the change does, for people.
	What []string `json:"-"`

	// Table is the index of its table, and Row the row of the file, or, if that has none, of the database.
	Table int  `json:"-"`
	Row   *Row `json:"-"`
}

// Rule is the rule of a row of rules, limits or overrides.
func (d *Difference) Rule() string { return d.Row.Text(Tables[d.Table].Columns[0].InFile()) }

// Diff returns what a policy must change to be as a file wants it. Rows that the file does not name
// are deleted with prune, and kept without. Sections that the file does not have are left alone.
func Diff(have, want *Content, prune bool) []Difference {
	changes := []Difference{}
	for table := range Tables {
		if !want.Has[table] {
			continue
		}
		t := &Tables[table]
		there := have.sorted(table)
		old := map[string]*Row{}
		for i := range there {
			old[there[i].key] = &there[i]
		}
		named := map[string]bool{}
		for _, row := range want.sorted(table) {
			named[row.key] = true
			if c := t.change(old[row.key], &row); c != nil {
				c.Table = table
				changes = append(changes, *c)
			}
		}
		for _, row := range there {
			if named[row.key] {
				continue
			}
			c := Difference{Kind: t.Kind, Name: t.RowName(&row), Outcome: Kept, Before: row.Fields, Table: table, Row: &row}
			c.After = c.Before
			// The tier of requests without a user is always there.
			if prune && !(table == columns.Tiers && c.Name == "anonymous") {
				c.Outcome, c.After = Deleted, nil
				if t.Takes != "" {
					c.What = []string{"with " + t.Takes}
				}
			}
			changes = append(changes, c)
		}
	}
	return changes
}

// change is what makes a row as the file has it; nil if it is so. old is nil for a new row.
func (t *Table) change(old, row *Row) *Difference {
	c := &Difference{Kind: t.Kind, Name: t.RowName(row), Outcome: Created, After: row.Fields, Row: row}
	if old != nil {
		c.Outcome, c.Before = Changed, old.Fields
	}
	for i := range t.Columns {
		column := &t.Columns[i]
		field := column.InFile()
		switch {
		case column.Key:
		case old != nil && !reflect.DeepEqual(old.Fields[field], row.Fields[field]):
			c.What = append(c.What, fmt.Sprintf("%s: %s → %s", field, shown(old.Fields[field]), shown(row.Fields[field])))
		case old == nil && !reflect.DeepEqual(row.Fields[field], column.Default):
			c.What = append(c.What, field+": "+shown(row.Fields[field]))
		}
	}
	if old != nil && c.What == nil {
		return nil
	}
	return c
}

// shown is a value for people.
func shown(value any) string {
	switch value := value.(type) {
	case string:
		return shortDigest(value)
	case []string:
		return "[" + strings.Join(value, ", ") + "]"
	}
	return "none"
}

// Fingerprint names changes: other changes have another one.
func Fingerprint(changes []Difference) (string, error) {
	var made []Difference
	for i := range changes {
		if changes[i].Outcome != Kept {
			made = append(made, changes[i])
		}
	}
	text, err := json.Marshal(made)
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8]), err
}
