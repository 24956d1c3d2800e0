package traefikplugin

import (
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// addresses finds a client's address as Traefik's own ipStrategy does.
type addresses struct {
	depth    int
	excluded []*net.IPNet
	subnet   int  // bits of an IPv6 network that count as one address; 0 is all
	plain    bool // none of these: it is the address of the connection
}

// newAddresses reads an IPStrategy; nil is the address of the connection.
func newAddresses(s *IPStrategy) (*addresses, error) {
	if s == nil {
		return &addresses{plain: true}, nil
	}
	a := &addresses{}
	if s.Depth < 0 {
		return nil, &ratelimit.FieldError{Field: "ipStrategy.depth", Value: strconv.Itoa(s.Depth), Want: "0 or more"}
	}
	a.depth = s.Depth
	for _, text := range s.ExcludedIPs {
		network, ok := parseNetwork(text)
		if !ok {
			return nil, &ratelimit.FieldError{Field: "ipStrategy.excludedIPs", Value: text, Want: "an IP address, or a network such as 10.0.0.0/8"}
		}
		a.excluded = append(a.excluded, network)
	}
	if s.IPv6Subnet != nil {
		a.subnet = *s.IPv6Subnet
		if a.subnet < 1 || a.subnet > 128 {
			return nil, &ratelimit.FieldError{Field: "ipStrategy.ipv6Subnet", Value: strconv.Itoa(a.subnet), Want: "from 1 to 128"}
		}
	}
	a.plain = a.depth == 0 && len(a.excluded) == 0 && a.subnet == 0
	return a, nil
}

// parseNetwork reads an address, as a network of one, or a network.
func parseNetwork(text string) (*net.IPNet, bool) {
	text = strings.TrimSpace(text)
	if ip := net.ParseIP(text); ip != nil {
		if v4 := ip.To4(); v4 != nil {
			ip = v4
		}
		return &net.IPNet{IP: ip, Mask: net.CIDRMask(len(ip)*8, len(ip)*8)}, true
	}
	_, network, err := net.ParseCIDR(text)
	return network, err == nil
}

// client is the address that {client_ip} stands for. It is empty where
// X-Forwarded-For is shorter than the depth, or holds only excluded addresses.
func (a *addresses) client(r *http.Request) string {
	if a.depth > 0 {
		forwarded := strings.Split(r.Header.Get("X-Forwarded-For"), ",")
		if len(forwarded) < a.depth {
			return ""
		}
		return a.network(strings.TrimSpace(forwarded[len(forwarded)-a.depth]))
	}
	if len(a.excluded) > 0 {
		forwarded := strings.Split(r.Header.Get("X-Forwarded-For"), ",")
		for i := len(forwarded) - 1; i >= 0; i-- {
			text := strings.TrimSpace(forwarded[i])
			if text == "" {
				continue
			}
			address, err := parseAddress(text)
			if err != nil {
				return text
			}
			if !a.excludes(address) {
				return address.String()
			}
		}
		return ""
	}
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return a.network(host)
}

// excludes reports whether an address is excluded.
func (a *addresses) excludes(address netip.Addr) bool {
	wide := address.As16()
	ip := net.IP(wide[:])
	for _, network := range a.excluded {
		if network.Contains(ip) {
			return true
		}
	}
	return false
}

// network is an address as everybody writes it, or the first one of an IPv6
// address's network. Other text stays.
func (a *addresses) network(text string) string {
	address, err := parseAddress(text)
	if err != nil {
		return text
	}
	if a.subnet == 0 || !address.Is6() {
		return address.String()
	}
	prefix, err := address.Prefix(a.subnet)
	if err != nil {
		return text
	}
	return prefix.Addr().String()
}

// parseAddress reads an address, which some proxies write with the port. An IPv4
// address in IPv6 form is an IPv4 address.
func parseAddress(text string) (netip.Addr, error) {
	address, err := netip.ParseAddr(text)
	if err != nil {
		if host, _, noPort := net.SplitHostPort(text); noPort == nil {
			address, err = netip.ParseAddr(host)
		}
	}
	return address.Unmap(), err
}
