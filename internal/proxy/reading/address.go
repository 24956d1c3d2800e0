package reading

import (
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
)

const allIPv4 = 32

// Network returns the network of an address, such as "2001:db8::/64": the first v4 bits of an IPv4 address,
// or the first v6 bits of an IPv6 address. If all bits count, it returns the address without a length. It
// normalizes addresses: IPv6 in lower case and without a zone, and IPv4-mapped addresses and those of NAT64
// as IPv4. Network returns other text unchanged.
func Network(text string, v4, v6 int) string {
	if v4 >= allIPv4 && strings.IndexByte(text, ':') < 0 {
		return text
	}
	address, err := netip.ParseAddr(text)
	if err != nil {
		return text
	}
	address = policy.ClientOf(address.Unmap().WithZone(""))
	bits := v4
	if address.Is6() {
		bits = v6
	}
	if bits >= address.BitLen() {
		return address.String()
	}
	prefix, err := address.Prefix(bits)
	if err != nil {
		return text
	}
	return prefix.String()
}

// Connection returns the address of a request's connection, or policy.UnknownAddress, as for a Unix socket.
func Connection(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err == nil {
		return host
	}
	if _, err = netip.ParseAddr(r.RemoteAddr); err == nil {
		return r.RemoteAddr
	}
	return policy.UnknownAddress
}

// Client returns the address of the client of a request, or its /64 if it is IPv6.
func Client(q *Input) string {
	address := netip.Addr{}
	if q.Clients != nil && q.Clients.Address != nil {
		address, _ = q.Clients.Address(q.HTTP)
	}
	return policy.NetworkText(address)
}

// plainHost has the characters of hosts that policy.NormalHost does not change, except for a final dot.
const plainHost = "abcdefghijklmnopqrstuvwxyz0123456789-_."

// HostOf returns the host of a request, normalized by policy.NormalHost.
func HostOf(r *http.Request) string {
	host, port, _ := strings.Cut(r.Host, ":")
	if strings.Trim(host, plainHost) != "" || strings.HasSuffix(host, ".") ||
		strings.Trim(port, "0123456789") != "" {
		return policy.NormalHost(r.Host)
	}
	return host
}
