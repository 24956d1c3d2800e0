// Package edge is what both proxies do with a request. It reads the settings of a
// configuration, opens the store that the settings name, and has each request go through the same steps: Decide in
// steps.go is the list. An adapter supplies the texts of placeholders and the driver of the database, serves the request, and
// says what happens to it.
//
//   - site.go, zone.go, set.go: a configuration, its limits, and those that are for a request, compiled. steps.go: what happens
//     to a request. ask.go: what the policy says of it.
//   - configuration.go: a configuration as text becomes a Site. setting.go, limit_settings.go, tables.go: the settings, with their
//     names, their values and their help.
//   - limit.go, cost.go, rows.go, limits.go, alternatives.go, network.go, request.go, exempt.go: the parts of limits.
//   - store.go, places.go: where they are counted. proxy.go, database.go: what handlers share.
//   - line.go, outage.go, sampler.go: what is logged.
//   - node.go, totals.go: this proxy in the registry of proxies, and what it has decided.
//   - decide.go: a request is decided. onerror.go, local.go: no decision was possible.
//   - match.go: for which requests a limit in Traefik is. Package respond writes the response.
//   - settle.go, settle_body.go: what the request really cost, by its response.
//   - history_settings.go, history.go: what is recorded of a request.
//
// Traefik interprets this package: see package batch for what that means.
package edge
