// Package reports has the problems that were reported in public about other rate limiters and gateways, as
// cases for Caddy and Traefik. A report names its source. One Caddy and one Traefik serve the sites of all
// reports, each site by its host.
package reports
