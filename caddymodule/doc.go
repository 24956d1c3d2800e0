// Package caddymodule is pg_ratelimit for Caddy: the HTTP handler module http.handlers.pg_ratelimit, and the
// app module pg_ratelimit, which has its defaults. Handler and App document the settings, in JSON and in a
// Caddyfile.
//
//   - handler.go, generated.go, policy.go, key.go, placeholder.go: the handler's settings, and texts with
//     placeholders. serve.go serves a request by the steps of package serve, report.go reports to logs, spans
//
// and events, refusal.go refuses it, response.go changes the headers of its response.
//   - app.go, process.go, dsn.go: the place where handlers count, and the log. same_path.go: a warning.
//   - history.go: what is recorded of requests.
//   - caddyfile.go, subdirectives.go, fields.go: reading a Caddyfile.
//   - metrics.go, policy_metrics.go, state_metrics.go: metrics for Prometheus.
//   - page.go, page_guard.go: the page, and what must be in front of it.
//   - package command: caddy pg-ratelimit …
//
// What a limit means is in package ratelimit. What both proxies do with a request is in package settings.
package caddymodule
