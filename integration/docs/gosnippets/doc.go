// Package gosnippets contains the functions from which the Go blocks of the
// documentation are copied, and the tests that run them. A block is a copy of
// successive lines of one function; the package docs above checks this.
package gosnippets
