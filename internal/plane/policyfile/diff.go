package policyfile

import "reflect"

// Outcome is what becomes of a row.
type Outcome uint8

// The outcomes.
const (
	Created Outcome = iota
	Changed
	Deleted
)

// Difference is what becomes of a row.
type Difference struct {
	Outcome Outcome
	Table   int  // the index of its table
	Row     *Row // as it is wanted; of a row to delete, as it is
}

// Rule is the rule of a row of rules, limits or overrides.
func (d *Difference) Rule() string { return d.Row.Text(Tables[d.Table].Columns[0].InFile()) }

// Diff returns what must change for rows to be as they are wanted, in the order of tables and keys.
func Diff(have, want *Content) []Difference {
	var changes []Difference
	for table := range Tables {
		there := have.sorted(table)
		old := map[string]*Row{}
		for i := range there {
			old[there[i].key] = &there[i]
		}
		named := map[string]bool{}
		for _, row := range want.sorted(table) {
			named[row.key] = true
			if was := old[row.key]; was == nil {
				changes = append(changes, Difference{Created, table, &row})
			} else if !reflect.DeepEqual(was.Fields, row.Fields) {
				changes = append(changes, Difference{Changed, table, &row})
			}
		}
		for _, row := range there {
			if !named[row.key] {
				changes = append(changes, Difference{Deleted, table, &row})
			}
		}
	}
	return changes
}
