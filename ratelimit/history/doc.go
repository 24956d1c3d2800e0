// Package history records what happened to requests: the audit log, the metrics by minute, and
// the usage of users and API keys. A Writer collects records off the path of the requests, and
// writes them to Postgres.
//
// Traefik interprets this package: see package batch for what that means.
package history
