package edge

import (
	"net/netip"
	"strings"
)

// MaskIP cuts an address down to its network: the first v4 bits of an IPv4
// address, v6 of an IPv6 one. 0 bits leave that kind alone, as is text that is
// not an address. An IPv4 address in IPv6 form counts as IPv4.
func MaskIP(text string, v4, v6 int) string {
	address, err := netip.ParseAddr(text)
	if err != nil {
		return text
	}
	address = address.Unmap().WithZone("")
	bits := v4
	if address.Is6() {
		bits = v6
	}
	if bits <= 0 || bits >= address.BitLen() {
		return text
	}
	prefix, err := address.Prefix(bits)
	if err != nil {
		return text
	}
	return prefix.String()
}

// credentialHeaders carry secrets, and are not called so.
var credentialHeaders = []string{"authorization", "proxy-authorization", "cookie"}

// CredentialHeader reports whether a request header of that name is a secret:
// a key made from one is stored as a digest.
func CredentialHeader(name string) bool {
	for _, known := range credentialHeaders {
		if strings.EqualFold(name, known) {
			return true
		}
	}
	return CredentialName(name)
}

// credentialWords occur in the names of secrets.
var credentialWords = []string{"password", "secret", "token", "api_key", "api-key", "apikey", "auth-key", "private-key", "credential"}

// CredentialName reports whether something of that name, such as a query
// parameter, sounds like a secret: a key made from one is stored as a digest.
func CredentialName(name string) bool {
	name = strings.ToLower(name)
	for _, word := range credentialWords {
		if strings.Contains(name, word) {
			return true
		}
	}
	return false
}
