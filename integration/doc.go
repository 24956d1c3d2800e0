// Package integration holds the tests that take whole programs: Caddy and
// Traefik as real processes, the plugin under Yaegi, and Postgres servers that
// are stopped, killed and paused under load. It is a module of its own, so that
// what these tests need never reaches who imports pg-ratelimit.
//
// What all of them share is in internal/harness: processes.go starts, watches
// and ends programs, build.go makes them, load.go sends them requests and counts
// the answers. internal/hammer is a program that asks the core without a proxy.
package integration
