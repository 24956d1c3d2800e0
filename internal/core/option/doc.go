// Package option has the choices that the settings of proxies, the rules of the policy and the records of the
// history share: modes, units, settlements, what is audited, ages, and the names of secrets.
//
// Traefik interprets this package with Yaegi, which limits the forms of code that it may use: see
// internal/testkit/imports/interpreted.go.
package option
