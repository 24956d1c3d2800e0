package ratelimit

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"unicode/utf8"
)

// MaxKey is the longest key, in bytes, that is stored as it is.
const MaxKey = 512

// digestPrefix begins every stored key that is a digest.
const digestPrefix = "sha256:"

// StoredKey is the text of the hit's key in the tables: the key itself, or its DigestKey
// if the hit is Secret, if Postgres cannot hold the key (a NUL byte, not UTF-8), if it is
// longer than MaxKey, or if it begins with "sha256:", so that no client can name another
// client's row.
func (h *Hit) StoredKey() string {
	if !h.Secret && len(h.Key) <= MaxKey && storable(h.Key) && !strings.HasPrefix(h.Key, digestPrefix) {
		return h.Key
	}
	return DigestKey(h.Key)
}

// DigestKey is "sha256:" and the SHA-256 of the key in hexadecimal. It keeps a
// secret, such as an API key, out of the tables.
func DigestKey(key string) string {
	sum := sha256.Sum256([]byte(key))
	return digestPrefix + hex.EncodeToString(sum[:])
}

// storable reports whether Postgres's text type holds s.
func storable(s string) bool {
	return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0
}
