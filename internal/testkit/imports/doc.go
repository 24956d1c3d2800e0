// Package imports has only tests: of which package may import which, and of the Go that
// the packages are written in that Traefik interprets.
package imports
