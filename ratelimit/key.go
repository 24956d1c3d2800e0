package ratelimit

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"unicode/utf8"
)

// MaxKey is the longest key, in bytes, that is stored as it is.
const MaxKey = 512

// DigestPrefix begins every stored key that is a digest.
const DigestPrefix = "sha256:"

// StoredKey is the text of a key in the tables: the key itself, or its DigestKey if
// Postgres cannot hold it or an index would suffer from it (more than MaxKey bytes, a
// NUL byte, not UTF-8). A key that begins with DigestPrefix is digested too, so that
// no client can name another client's row.
func StoredKey(key string) string {
	if len(key) <= MaxKey && storable(key) && !strings.HasPrefix(key, DigestPrefix) {
		return key
	}
	return DigestKey(key)
}

// DigestKey is DigestPrefix and the SHA-256 of the key in hexadecimal. It keeps a
// secret, such as an API key, out of the tables.
func DigestKey(key string) string {
	sum := sha256.Sum256([]byte(key))
	return DigestPrefix + hex.EncodeToString(sum[:])
}

// storable reports whether Postgres's text type holds s.
func storable(s string) bool {
	return utf8.ValidString(s) && strings.IndexByte(s, 0) < 0
}
