// Package policyfile has the rows of the policy's tables as commands change them: values as people write them, each in one
// form, and what differs between rows. It knows no database; package admin reads and writes the rows.
//
//   - tables.go: the tables, and their rows
//   - values.go: the values of columns
//   - diff.go: what differs
package policyfile
