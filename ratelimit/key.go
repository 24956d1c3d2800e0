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
	if plainKey(key) {
		return key
	}
	return DigestKey(key)
}

// plainKey reports whether a key is stored as it is.
func plainKey(key string) bool {
	return len(key) <= MaxKey && storable(key) && !strings.HasPrefix(key, digestMark)
}

// allPlain reports whether all keys surely are plain. It looks at them in one
// piece: an interpreter pays for each call.
func allPlain(keys []string) bool {
	for _, key := range keys {
		if len(key) > MaxKey {
			return false
		}
	}
	text := strings.Join(keys, "\x00")
	return utf8.ValidString(text) && strings.Count(text, "\x00") < len(keys) && !strings.Contains(text, digestMark)
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
