// Package caddymodule is pg_ratelimit for Caddy: the HTTP handler module
// http.handlers.pg_ratelimit and the app module pg_ratelimit that holds its
// defaults. Handler and App describe the configuration, in JSON and in a
// Caddyfile alike.
//
// It decides nothing itself. It turns requests into hits for a ratelimit.Store
// and a store's decisions into answers; what a limit means is said in package
// ratelimit.
package caddymodule
