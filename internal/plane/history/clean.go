package history

import (
	"net/netip"
	"strings"
	"unicode/utf8"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
)

const (
	maxText    = 255 // bytes of a host, a prefix and other names
	maxKey     = 512 // bytes of a key and of a user, as in the other tables
	maxMethod  = 32  // bytes
	maxPath    = 500 // characters
	maxAlso    = 16  // texts: 8 limits
	hiddenText = "(address)"
)

// cleanText returns s as UTF-8 without NUL, of at most most bytes. It returns s itself if it complies.
func cleanText(s string, most int) string {
	if len(s) > most {
		for most > 0 && !utf8.RuneStart(s[most]) {
			most--
		}
		s = s[:most]
	}
	if utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 {
		return s
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "?"), "\x00", "?")
}

// cleanPath returns a path without its query, of at most maxPath characters.
func cleanPath(path string) string {
	if at := strings.IndexByte(path, '?'); at >= 0 {
		path = path[:at]
	}
	path = cleanText(path, maxPath*utf8.UTFMax)
	if len(path) <= maxPath {
		return path
	}
	at := 0
	for n := 0; n < maxPath && at < len(path); n++ {
		_, size := utf8.DecodeRuneInString(path[at:])
		at += size
	}
	return path[:at]
}

// maskAddress returns the text of an address for the audit log. "" means none.
func maskAddress(mode settings.AddressMode, address netip.Addr) string {
	if mode == settings.AddressOff || !address.IsValid() {
		return ""
	}
	address = address.Unmap().WithZone("")
	if mode == settings.AddressFull {
		return address.String()
	}
	return maskedText(mode, address, 128)
}

// maskBits returns the number of bits of an address that settings.AddressPrefix keeps.
func maskBits(address netip.Addr) int {
	if address.Is4() {
		return 24
	}
	return 48
}

// maskKey returns a key with masked addresses. It masks a key that is an address or a network as a whole. In
// any other key it masks the client's address, and the /64 that proxies treat as one client.
func maskKey(mode settings.AddressMode, key string, client netip.Addr) string {
	if mode == settings.AddressFull || key == "" {
		return key
	}
	if address, err := netip.ParseAddr(key); err == nil {
		return maskedText(mode, address.Unmap().WithZone(""), 128)
	}
	if network, err := netip.ParsePrefix(key); err == nil {
		bits := network.Bits()
		address := network.Addr()
		if address.Is4In6() && bits >= 96 {
			address = address.Unmap()
			bits -= 96
		}
		return maskedText(mode, address, bits)
	}
	if !client.IsValid() {
		return key
	}
	client = client.Unmap().WithZone("")
	masked := maskedText(mode, client, 128)
	if client.Is6() {
		network, _ := client.Prefix(64)
		key = strings.ReplaceAll(key, network.String(), masked)
	}
	text := client.String()
	if strings.HasPrefix(masked, text) {
		// Unmask first, so that the last step does not mask twice.
		key = strings.ReplaceAll(key, masked, text)
	}
	return strings.ReplaceAll(key, text, masked)
}

// maskedText returns the replacement for an address, or for a network with a prefix of so many bits.
func maskedText(mode settings.AddressMode, address netip.Addr, bits int) string {
	if mode == settings.AddressOff {
		return hiddenText
	}
	if most := maskBits(address); bits > most {
		bits = most
	}
	network, _ := address.Prefix(bits) // it has so many bits
	return network.String()
}
