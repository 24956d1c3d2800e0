package ratelimit

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"unicode/utf8"
)

// MaxKey is the length in bytes of the longest key that is stored unchanged.
const MaxKey = 512

// digestPrefix begins every stored key that is a digest.
const digestPrefix = "sha256:"

// StoredKey returns the text that the tables hold for the hit's key. It is Key itself, or its
// DigestKey if the hit is Secret, or if Key is longer than MaxKey, is not UTF-8, holds a NUL
// byte, or begins with "sha256:" (so that no client can name another client's row).
func (h *Hit) StoredKey() string {
	if !h.Secret && len(h.Key) <= MaxKey && storable(h.Key) && !strings.HasPrefix(h.Key, digestPrefix) {
		return h.Key
	}
	return DigestKey(h.Key)
}

// DigestKey returns "sha256:" followed by the SHA-256 of the key in hexadecimal. It keeps a
// secret, such as an API key, out of the tables.
func DigestKey(key string) string {
	sum := sha256.Sum256([]byte(key))
	return digestPrefix + hex.EncodeToString(sum[:])
}

// storable reports whether Postgres's text type can hold s.
func storable(s string) bool {
	return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0
}
