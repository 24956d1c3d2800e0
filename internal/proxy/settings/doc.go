// Package settings reads and validates the settings of proxies, so that the Caddyfile, the JSON of Caddy, the
// configuration of Traefik and the commands accept the same values.
//
// A table (LimitTable, HandlerTable, ConnectionTable …) lists Settings, each with its name, its form, its
// default, and a function that reads and validates its text. Read applies a table to Values, which are texts
// by name, and sets the fields of Settings, in the order of the table. Errors are *ratelimit.FieldError, with
// names from the table. Package option has what the control plane shares with the settings.
//
// Traefik interprets this package with Yaegi, which limits the forms of code that it may use: see
// internal/testkit/imports/interpreted.go.
package settings
