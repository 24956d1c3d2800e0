package sqltest

import (
	_ "embed"
	"strings"
)

// CatalogSQL returns a line for each thing that a migration creates. The line of a column has its place, its
// collation, and whether it is NOT NULL. NOT NULL constraints have no lines, because only Postgres 18 has
// them, with names that it chooses.
//
//go:embed testdata/catalog.sql
var CatalogSQL string

// LibraryTables makes the tables of the npm library, which have the collation of the database.
//
//go:embed testdata/npm.sql
var LibraryTables string

// DifferingLines returns the lines that only one of two texts has.
func DifferingLines(a, b string) (lines string) {
	for line := range strings.SplitSeq(a+"\n"+b, "\n") {
		if !strings.Contains(a, line) || !strings.Contains(b, line) {
			lines += line + "\n"
		}
	}
	return lines
}
