// Package columns describes the columns of the policy's tables that people set. From this description come the
// lists of rules and users, and what proxies load into memory. The comment of a column in the
// database says what it means. A test compares the description with the catalog of a database.
//
// A column that is not here is not about the policy, but about the row, such as created_at, and the counter of a rule,
// which is about rows of counters.
package columns

// Kind is the kind of the values of a column.
type Kind uint8

// The kinds.
const (
	Text      Kind = iota
	Whole          // a whole number
	Amount         // a whole number, or unlimited, which the database has as NULL
	Flag           // true or false
	List           // texts
	Networks       // networks as Go writes them
	Duration       // such as 90s, in the largest unit of which it is a multiple
	Moment         // a time in UTC, or never
	Range          // FROM..UNTIL, in UTC; either may be missing
	Day            // such as 2026-11-27
	Digest         // the SHA-256 of an API key, in hexadecimal
	KeyDigest      // that of the API key whose id the column has
)

// types are the types of the columns in the database, by Kind.
var types = []string{
	"text", "bigint", "bigint", "boolean", "text[]", "cidr[]", "interval", "timestamptz", "tstzrange", "date", "bytea",
	"bigint",
}

// SQL is the type of the columns of a kind.
func (k Kind) SQL() string { return types[k] }

// IsList reports whether a value is a list.
func (k Kind) IsList() bool { return k == List || k == Networks }

// Column is a column of a table.
type Column struct {
	// Name is that of the column in the database, and Field that in a file if it is another one.
	Name, Field string
	Kind        Kind
	// Choices are the only values, if there are few.
	Choices []string
	// Load is the field of Rule, RuleLimit or Override of package policy that has the value; "" is none. Limit.Events
	// is the field Events in Limit. A Range has the fields From and Until.
	Load string
	// LoadIs is the value for which a field of type bool is true.
	LoadIs string
	// First is the number of the first of Choices in memory.
	First int
}

// InFile is the name of the column in a file.
func (c *Column) InFile() string {
	if c.Field != "" {
		return c.Field
	}
	return c.Name
}

// Table is a table of the policy.
type Table struct {
	// Name is that of the table in the database.
	Name    string
	Columns []Column
}

// Find is the column of a name, or nil.
func (t *Table) Find(name string) *Column {
	for i := range t.Columns {
		if t.Columns[i].Name == name {
			return &t.Columns[i]
		}
	}
	return nil
}
