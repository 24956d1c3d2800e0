// Package integration tests whole programs: Caddy and Traefik as real processes, the plugin under Yaegi, and
// Postgres servers that are stopped, killed and paused under load. The module is separate, so that programs
// that import pg-ratelimit do not get the dependencies of these tests.
//
// Package internal/testkit/harness of the repository builds and runs programs, sends them requests and counts
// the responses.
package integration
