// Package columns describes the columns of the policy's tables that people set. From this description come the
// settings of commands, the lists of rules and users, and what proxies load into memory. The comment of a column in the
// database says what it means. A test compares the description with the catalog of a database.
//
// A column that is not here is not about the policy, but about the row, such as created_at, and the counter of a rule,
// which is about rows of counters.
package columns

import (
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

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

// The values of files for no end, and for a Range without bounds.
const (
	Never  = "never"
	Always = ".."
)

// Column is a column of a table.
type Column struct {
	// Name is that of the column in the database, and Field that in a file if it is another one.
	Name, Field string
	Kind        Kind
	// Default is the value of a field that a row of a file lacks, as the column has it. nil is NULL.
	Default any
	// Min and Max bound whole numbers. Max 0 is no bound.
	Min, Max int64
	// Choices are the only values, if there are few.
	Choices []string
	// Needed: each row of a file has the field.
	Needed bool
	// Key: the fields of a row that are keys together name it.
	Key bool
	// Late: the column names another row of its table, so that it is set when all rows are there.
	Late bool

	// NoSetting: no command sets the column by its name. Nor does one set a Key.
	NoSetting bool

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

// Allows reports whether a whole number is within the bounds.
func (c *Column) Allows(text string) bool {
	number, err := strconv.ParseInt(text, 10, 64)
	return c.Max == 0 || err == nil && number >= c.Min && number <= c.Max
}

// Check returns a *ratelimit.FieldError if a text is none of the choices.
func (c *Column) Check(text string) error {
	for _, choice := range c.Choices {
		if choice == text {
			return nil
		}
	}
	if c.Choices == nil {
		return nil
	}
	return &ratelimit.FieldError{Field: c.InFile(), Value: text, Want: "one of " + strings.Join(c.Choices, ", ")}
}

// Table is a table of the policy. Its rows are a section of a file, or, of limits, a list in each rule.
type Table struct {
	// Kind is what a row is.
	Kind string
	// Section is the name of the section or the list.
	Section string
	// Name is that of the table in the database.
	Name    string
	Columns []Column
}

// Set are the columns that commands set.
func (t *Table) Set() []*Column {
	var set []*Column
	for i := range t.Columns {
		if c := &t.Columns[i]; !c.Key && !c.NoSetting {
			set = append(set, c)
		}
	}
	return set
}

// Find is the column of a name that commands set, or nil.
func (t *Table) Find(name string) *Column {
	for _, c := range t.Set() {
		if c.Name == name {
			return c
		}
	}
	return nil
}
