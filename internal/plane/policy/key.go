package policy

import (
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"hash/crc32"
	"math/big"
	"regexp"
	"strings"
)

// KeyPrefix begins every API key that NewKey makes.
const KeyPrefix = "prl_"

const (
	secretDigits   = 27 // 160 bits
	checksumDigits = 6
	keyLength      = len(KeyPrefix) + secretDigits + checksumDigits
)

// digits62 are the digits of base 62, by value.
const digits62 = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

// NewKey makes an API key of 37 characters: KeyPrefix, 27 random digits of base 62, and a checksum of 6
// digits. The checksum is the CRC-32 (IEEE) of all characters before it, in base 62, so that a mistyped key
// is recognised without a database. Anybody can invent a key with a correct checksum.
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
	for at := checksumDigits - 1; at >= 0; at-- {
		digits[at] = digits62[sum%62]
		sum /= 62
	}
	return string(digits)
}

// Check reports whether a key has the form and the checksum of a key that NewKey made. A
// key that was made elsewhere and imported by its digest has neither: Check only those that
// begin with KeyPrefix.
func Check(key string) bool {
	if len(key) != keyLength || !strings.HasPrefix(key, KeyPrefix) {
		return false
	}
	body := key[:keyLength-checksumDigits]
	return strings.Trim(body[len(KeyPrefix):], digits62) == "" && checksum(body) == key[len(body):]
}

// Digest returns the SHA-256 of an API key, which is in the database instead of the key. A fast digest suits
// keys with this much entropy.
func Digest(key string) [32]byte { return sha256.Sum256([]byte(key)) }

// Hint returns the form of a key in lists and logs: KeyPrefix and the first four of its random characters, as
// in "prl_4cQx...". A key of another form has none ("").
func Hint(key string) string {
	if !Check(key) {
		return ""
	}
	return key[:len(KeyPrefix)+4] + "..."
}

// Bearer returns the API key in a header: the value without spaces around it, and without the
// scheme "Bearer ", in any case.
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

// hiddenKey stands for an API key in a text that is stored.
const hiddenKey = "(key)"

// keyLike matches texts that look like a key of NewKey, or a part of one.
var keyLike = regexp.MustCompile("(?i:" + KeyPrefix + ")[0-9A-Za-z]{5,}")

// HideKeys replaces API keys in a host or a path: the given key, unless it is "", and all that
// looks like a key of NewKey, in any case, since a host is in lower case. A text that has such a key
// in an encoded form is returned in plain form.
func HideKeys(text, key string) string {
	if key == "" && !strings.ContainsAny(text, "_%") {
		return text
	}
	if strings.ContainsAny(text, "%\\") {
		plain := strings.ReplaceAll(unescape(text), "\\", "/")
		if hidden := hidePlain(plain, key); hidden != plain {
			return hidden
		}
	}
	return hidePlain(text, key)
}

// hidePlain hides keys that are not encoded.
func hidePlain(text, key string) string {
	if key != "" {
		text = strings.ReplaceAll(text, key, hiddenKey)
	}
	if strings.IndexByte(text, '_') < 0 {
		return text
	}
	return keyLike.ReplaceAllLiteralString(text, hiddenKey)
}
