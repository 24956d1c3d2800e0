// Package settings reads the settings of proxies: their names, values, defaults and documentation. It imports
// neither a proxy nor the plane, so that commands and both proxies configure alike.
//
//   - setting.go: a setting and how it is read. tables.go, limit_table.go: the tables of settings.
//   - limit.go, key.go, settle.go, store.go, history.go: values that need more than a line.
//   - age.go: how long rows are kept. credentials.go: names of secrets. password.go: passwords in a DSN.
//
// Traefik interprets this package: see internal/testkit/imports/interpreted.go for the restrictions.
package settings
