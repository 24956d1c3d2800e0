// Package settings reads texts that proxies and administrators' commands configure alike: ages, and which
// texts hold secrets. It imports neither a proxy nor the plane.
//
//   - age.go: how long rows are kept. credentials.go: names of secrets. password.go: passwords in a DSN.
//
// Traefik interprets this package: see package batch for what that means.
package settings
