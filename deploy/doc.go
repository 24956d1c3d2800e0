// Package deploy holds no code, only the tests of the files in this folder and of the release: each
// file is read with the libraries of its kind, what it names is compared with the project, and the
// same configuration runs as processes. It is a module of its own, since nothing else needs these
// libraries.
package deploy
