// Package settings reads the settings of proxies: their names, values, defaults and what they must be. It
// imports neither a proxy nor the plane, so that commands and both proxies configure alike.
//
//   - tables.go: the tables of settings. setting.go: how they are read. kinds.go: numbers, switches, names.
//   - limit.go, key.go, settle.go, handler.go, store.go, history.go: values that need more than a line.
//   - credentials.go: names of secrets. password.go: passwords in a DSN.
//
// Traefik interprets this package: see internal/testkit/imports/interpreted.go for the restrictions.
package settings
