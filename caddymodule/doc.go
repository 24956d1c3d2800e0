// Package caddymodule adapts pg_ratelimit to Caddy. It registers the handler http.handlers.pg_ratelimit, the
// app pg_ratelimit, which holds defaults, and the command `caddy pg-ratelimit`, which package admin fills.
//
// A Handler is the configuration of limits. It compiles into a serve.Site, which decides its requests. An App
// opens the databases of all handlers through a host.Process, so handlers with equal settings share one
// connection pool, which outlives a reload. The fields of these types hold settings as Text, under their JSON
// names. Package settings parses them, so the Caddyfile and JSON accept the same values. A template is a text
// with placeholders. A responseWriter keeps the headers of the limit in responses of upstreams.
//
// The package has no rules of its own for limits. Package ratelimit defines limits, and package serve the
// steps of a request in both proxies.
package caddymodule
