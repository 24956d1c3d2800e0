// Package reading reads from a request who sent it, and the texts of placeholders and keys, which its client
// chooses. A value that a client can write in several ways has one form. Of several values each counts,
// because a server may read any of them.
//
// Everything is immutable once a configuration is compiled. Traefik interprets this package: see
// internal/testkit/imports/interpreted.go.
package reading

import (
	"net/http"
	"net/netip"
)

// Input has the parts of a request with its values.
type Input struct {
	HTTP        *http.Request
	Replacer    any      // Caddy's replacer, for its Customs; nil in Traefik
	Clients     *Clients // finds the client's address
	AcceptedKey string   // the API key that the policy has accepted, or ""
}

// Clients finds the addresses of the clients of a site.
type Clients struct {
	// Address returns the address of a client as in policy.Facts, or the zero Addr without one. assumed
	// reports that the address may belong to a load balancer.
	Address func(r *http.Request) (address netip.Addr, assumed bool)

	// Unknown is called for a client without an address.
	Unknown func()
}
