// Package deploy contains only tests, of the files in this folder and of the release. A test reads a
// file with the library of its format, compares the names in the file with the project, and runs the
// configuration as processes. The module is separate, because nothing else needs these libraries.
package deploy
