// Package imports holds no code, only the tests that keep the house in order:
// who may import whom, and which Go the packages are written in that a Traefik
// interprets instead of compiling.
package imports
