// Package edge is what both proxies do with a request. It reads the settings of a
// configuration, opens the store that the settings name, asks the store for a decision, and
// writes the headers and the refusal. An adapter supplies the hits of a request and the
// driver of the database.
//
//   - setting.go, limit_settings.go, tables.go: the settings, with their names, their values and their help.
//   - misspelt.go: which name a misspelt one may be.
//   - limit.go, cost.go, rows.go, limits.go, alternatives.go, network.go, request.go, credentials.go, exempt.go: the limits of a configuration
//     and the hits that a request makes on them.
//   - store.go, password.go: where they are counted.
//   - node.go: this proxy in the registry of proxies, and a pause of all limits. live.go: what it says there while a page is open.
//   - decide.go: a request is decided. onerror.go, local.go: no decision was possible.
//   - match.go: for which requests a limit in Traefik is. headers.go, ietf.go, upstream.go, refusal.go, problem.go: the response.
//   - settle.go, settle_body.go: what the request really cost, by its response.
//   - history_settings.go, history.go: what is recorded of a request.
//
// Traefik interprets this package: see package batch for what that means.
package edge
