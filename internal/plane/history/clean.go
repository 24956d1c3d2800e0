package history

import (
	"net/netip"
	"strings"
	"unicode/utf8"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
)

const (
	maxText    = 255 // bytes of a host, a prefix and other names
	maxKey     = 512 // bytes of a key or a user, as in the other tables
	maxMethod  = 32  // bytes
	maxPath    = 500 // characters
	maxAlso    = 16  // texts of Record.Also: two for each of 8 limits
	hiddenText = "(address)"
)

// CleanText returns s as UTF-8 without NUL, of at most maxBytes bytes. If s is such a text already, the
// result is s itself.
func CleanText(s string, maxBytes int) string {
	if len(s) > maxBytes {
		for maxBytes > 0 && !utf8.RuneStart(s[maxBytes]) {
			maxBytes--
		}
		s = s[:maxBytes]
	}
	if utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 {
		return s
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "?"), "\x00", "?")
}

// cleanPath returns a path without its query, of at most maxPath characters.
func cleanPath(path string) string {
	if end := strings.IndexByte(path, '?'); end >= 0 {
		path = path[:end]
	}
	path = CleanText(path, maxPath*utf8.UTFMax)
	if len(path) > maxPath {
		if characters := []rune(path); len(characters) > maxPath {
			path = string(characters[:maxPath])
		}
	}
	return path
}

// maskAddress returns the text of an address for the audit log, or "" if the audit log is to have no address.
func maskAddress(mode option.AddressMode, address netip.Addr) string {
	if mode == option.AddressOff || !address.IsValid() {
		return ""
	}
	address = address.Unmap().WithZone("")
	if mode == option.AddressFull {
		return address.String()
	}
	return maskedText(mode, address, 128)
}

// maskKey returns a key with masked addresses. If the key is an address or a network, maskKey masks the whole
// key. In any other key, maskKey masks each occurrence of the client's address, and of the /64 network that
// proxies treat as one client.
func maskKey(mode option.AddressMode, key string, client netip.Addr) string {
	if mode == option.AddressFull || key == "" {
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
		// The client's address is the first of its network, and so the masked text begins with it:
		// 2001:db8::/48 with 2001:db8::. The last step would add a second /48 to such a text, so first undo
		// the replacement above.
		key = strings.ReplaceAll(key, masked, text)
	}
	return strings.ReplaceAll(key, text, masked)
}

// maskedText returns the text that replaces the network with the first bits bits of an address.
func maskedText(mode option.AddressMode, address netip.Addr, bits int) string {
	if mode == option.AddressOff {
		return hiddenText
	}
	keep := 48
	if address.Is4() {
		keep = 24
	}
	if bits > keep {
		bits = keep
	}
	network, _ := address.Prefix(bits) // bits fits the address
	return network.String()
}
