package traefikplugin

import (
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/reading"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
)

// addresses determines the addresses of clients by an IPStrategy.
type addresses struct {
	depth    int
	excluded []netip.Prefix
	plain    bool // no strategy: clients have the address of their connection
}

// newAddresses compiles an IPStrategy. Nil means that clients have the address of their connection.
func newAddresses(s *IPStrategy) (*addresses, error) {
	if s == nil {
		return &addresses{plain: true}, nil
	}
	r := &reader{}
	r.values("ipStrategy.", s.Other, "depth excludedIPs ipv6Subnet")
	if s.Depth < 0 {
		r.invalid("ipStrategy.depth", strconv.Itoa(s.Depth), "0 or more")
	}
	a := &addresses{depth: s.Depth, plain: s.Depth == 0 && len(s.ExcludedIPs) == 0}
	for _, text := range s.ExcludedIPs {
		network, ok := settings.ParseNetwork(strings.TrimSpace(text))
		if !ok {
			r.invalid("ipStrategy.excludedIPs", text, "an IP address, or a network such as 10.0.0.0/8")
		}
		a.excluded = append(a.excluded, network)
	}
	if s.IPv6Subnet != nil && (*s.IPv6Subnet < 1 || *s.IPv6Subnet > 128) {
		r.invalid("ipStrategy.ipv6Subnet", strconv.Itoa(*s.IPv6Subnet), "a whole number from 1 to 128")
	}
	return a, r.err
}

// address implements serve.Site.Address. It returns the zero Addr for text that is not an address. If
// X-Forwarded-For is shorter than the depth, has only excluded addresses, or has other text in the client's
// place, address returns that of the connection. assumed is then true, because it may be a load balancer's.
func (a *addresses) address(r *http.Request) (address netip.Addr, assumed bool) {
	if a.plain { // almost always, and then without further calls
		if connection, err := netip.ParseAddrPort(r.RemoteAddr); err == nil {
			return connection.Addr().Unmap().WithZone(""), false
		}
	} else if forwarded, err := parseAddress(a.forwarded(r)); err == nil {
		return forwarded, false
	}
	connection, _ := parseAddress(reading.Connection(r))
	return connection, !a.plain
}

// forwarded returns the client's entry in X-Forwarded-For, or "" without one. A client can write any text
// there. Some load balancers add their own line after the client's lines, so all lines count as one list.
func (a *addresses) forwarded(r *http.Request) string {
	forwarded := strings.Split(strings.Join(r.Header["X-Forwarded-For"], ","), ",")
	if a.depth > 0 {
		return strings.TrimSpace(reading.ElementAt(forwarded, len(forwarded)-a.depth))
	}
	for i := len(forwarded) - 1; i >= 0; i-- {
		text := strings.TrimSpace(forwarded[i])
		if text == "" {
			continue
		}
		if address, err := parseAddress(text); err != nil || !policy.ContainsAddress(a.excluded, address) {
			return text
		}
	}
	return ""
}

// parseAddress parses an address, which some proxies write with a port. It converts IPv4-mapped addresses to
// IPv4, and drops the zone, for which a client can choose a long text.
func parseAddress(text string) (netip.Addr, error) {
	address, err := netip.ParseAddr(text)
	if err != nil {
		if host, _, noPort := net.SplitHostPort(text); noPort == nil {
			address, err = netip.ParseAddr(host)
		}
	}
	return address.Unmap().WithZone(""), err
}
