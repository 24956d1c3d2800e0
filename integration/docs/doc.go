// Package docs contains only the tests of the documentation: every code block of
// the README and of each page in docs is run or checked, every link leads to a
// page or a heading, and the tables of settings list what the code accepts.
//
// A block is tested by its language. The Go blocks are copies of lines in the
// package gosnippets, which compiles and runs them.
package docs
