// Package gosnippets holds no code, only the functions that the Go blocks of the
// documentation are copied from, and the tests that run them. A block is a run
// of lines inside one function; the package above checks that they are equal.
package gosnippets
