package policy

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"math/big"
	"regexp"
	"strings"
)

// KeyPrefix is the prefix of every API key that NewKey returns.
const KeyPrefix = "prl_"

const (
	secretDigits   = 27 // 160 bits
	checksumDigits = 6
	keyLength      = len(KeyPrefix) + secretDigits + checksumDigits
)

// digits62 are the digits of base 62, by value.
const digits62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// NewKey returns an API key of 37 characters: KeyPrefix, 27 random digits of base 62, and a checksum of 6
// digits. The checksum is the CRC-32 (IEEE) of all characters before it, in base 62. It detects a mistyped
// key without the database. It does not prove that a key is real, because anybody can compute a checksum.
func NewKey() (string, error) {
	key := KeyPrefix
	for len(key) < keyLength-checksumDigits {
		digit, err := rand.Int(rand.Reader, big.NewInt(62))
		if err != nil {
			return "", fmt.Errorf("no random bits for an API key: %w", err)
		}
		key += digits62[digit.Int64() : digit.Int64()+1]
	}
	return key + checksum(key), nil
}

func checksum(text string) string {
	sum := crc32.ChecksumIEEE([]byte(text))
	digits := make([]byte, checksumDigits)
	for i := checksumDigits - 1; i >= 0; i-- {
		digits[i] = digits62[sum%62]
		sum /= 62
	}
	return string(digits)
}

// Check reports whether a key has the form and the checksum of NewKey's keys. Call it only for keys that
// begin with KeyPrefix: a key that was imported by its digest may have any other form.
func Check(key string) bool {
	if len(key) != keyLength || !strings.HasPrefix(key, KeyPrefix) {
		return false
	}
	body := key[:keyLength-checksumDigits]
	return strings.Trim(body[len(KeyPrefix):], digits62) == "" && checksum(body) == key[len(body):]
}

// Digest returns the SHA-256 of an API key in hexadecimal. The database stores it instead of the key. A fast
// digest is safe for keys with this much entropy.
func Digest(key string) string {
	sum := sha256.Sum256([]byte(key))
	return hex.EncodeToString(sum[:])
}

// Hint returns a short form of a key for lists and logs: KeyPrefix and the first four random characters, as
// in "prl_4cQx...". It returns "" for a key of another form.
func Hint(key string) string {
	if !Check(key) {
		return ""
	}
	return key[:len(KeyPrefix)+4] + "..."
}

// Bearer returns the API key in the value of a header. Bearer removes surrounding spaces and the scheme
// "Bearer ", in upper or lower case.
func Bearer(value string) string {
	value = strings.TrimSpace(value)
	scheme := strings.IndexAny(value, " \t")
	if scheme < 0 {
		scheme = len(value)
	}
	if strings.EqualFold(value[:scheme], "bearer") {
		return strings.TrimSpace(value[scheme:])
	}
	return value
}

// hiddenKey replaces an API key in a stored text.
const hiddenKey = "(key)"

// keyLike matches a text that looks like a key of NewKey or its start.
var keyLike = regexp.MustCompile("(?i:" + KeyPrefix + ")[0-9A-Za-z]{5,}")

// HideKeys replaces API keys in a host or a path: the given key, unless it is "", and every text that looks
// like a key of NewKey. It ignores upper and lower case, because a host is in lower case. If a key is
// percent-encoded, HideKeys returns the decoded text.
func HideKeys(text, key string) string {
	if strings.ContainsAny(text, "%\\") {
		plain := strings.ReplaceAll(Unescape(text), "\\", "/")
		if hidden := hidePlain(plain, key); hidden != plain {
			return hidden
		}
	}
	return hidePlain(text, key)
}

// hidePlain replaces API keys that are not encoded.
func hidePlain(text, key string) string {
	if key != "" {
		text = strings.ReplaceAll(text, key, hiddenKey)
	}
	if strings.IndexByte(text, '_') < 0 {
		return text
	}
	return keyLike.ReplaceAllLiteralString(text, hiddenKey)
}
