// Package policyfile is the policy as a file of YAML: tiers, rules with their limits, overrides, and
// on request users and the digests of API keys. It knows no database; package admin reads and writes
// the rows.
//
//   - tables.go: which columns of which tables the file has, and the rows of a file or of a database
//   - values.go: the values of columns, each in one form
//   - parse.go: a file becomes rows, or errors that say where and what
//   - write.go: rows become a file. Equal rows become equal files.
//   - diff.go: what differs
package policyfile
