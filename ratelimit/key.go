package ratelimit

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"unicode/utf8"
)

// MaxKey is the longest key, in bytes, that is stored as it is.
const MaxKey = 512

// digestMark begins every key that is a digest.
const digestMark = "sha256:"

// StoredKey is the text that stands for a key in the tables: the key itself,
// or its DigestKey where Postgres could not hold it or an index would suffer
// from it (longer than MaxKey bytes, a NUL in it, or not UTF-8). A key that
// looks like a digest is digested too, so that nobody can name another's row.
func StoredKey(key string) string {
	// In plain sight, for an interpreter: this runs for every hit.
	if len(key) > MaxKey || !utf8.ValidString(key) || strings.IndexByte(key, 0) >= 0 ||
		len(key) >= len(digestMark) && key[:len(digestMark)] == digestMark {
		return DigestKey(key)
	}
	return key
}

// DigestKey is "sha256:" and the SHA-256 of the key in hexadecimal. It keeps a
// secret, such as an API key, out of the tables.
func DigestKey(key string) string {
	sum := sha256.Sum256([]byte(key))
	return digestMark + hex.EncodeToString(sum[:])
}

// storable reports whether Postgres's text type holds s.
func storable(s string) bool {
	return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0
}
