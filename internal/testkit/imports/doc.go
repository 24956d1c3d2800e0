// Package imports has only tests: of the imports between packages, of the Go in packages that Traefik
// interprets, and of the language of comments.
package imports
