// Package imports tests the imports between packages, the Go in packages that Traefik interprets, and the
// language of comments. interpreted.go lists the interpreted packages and their restrictions.
package imports
