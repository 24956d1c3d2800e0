package ratelimit_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// An invalid hit is refused with an error that names the field.
func TestInvalidHitNamesField(t *testing.T) {
	l := &ratelimit.Limit{Prefix: "p", Events: 1, Window: time.Second}
	slots := &ratelimit.Limit{Prefix: "p", Algorithm: ratelimit.InFlight, Events: 1}
	for _, test := range []struct {
		hit  ratelimit.Hit
		want string // the start of the error
	}{
		{ratelimit.Hit{Limit: l, Cost: 1}, "<nil>"},
		{ratelimit.Hit{Limit: l, Cost: math.MaxInt64}, "<nil>"}, // valid, although the hit never passes
		{ratelimit.Hit{Limit: l, Cost: math.MinInt64}, "<nil>"},
		{ratelimit.Hit{Limit: l, Cost: 1, Peek: true, Secret: true}, "<nil>"},
		{ratelimit.Hit{Cost: 1}, "hit: missing: must be on a limit"},
		{ratelimit.Hit{Limit: l}, `cost: "0": must be 1 or more`},
		{ratelimit.Hit{Limit: l, Peek: true}, `cost: "0": must be 1 or more`},
		{ratelimit.Hit{Limit: l, Cost: -1, Peek: true}, `cost: "below 0": must be 1 or more`},
		{ratelimit.Hit{Limit: slots, Cost: 1}, "hold: missing: must be a Hold for each hit"},
		{ratelimit.Hit{Limit: slots, Cost: -1}, `cost: "-1": must be 1 or more for in_flight`},
	} {
		hits := []ratelimit.Hit{{Limit: l, Cost: 1}, test.hit}
		err := ratelimit.ValidateHits(hits, make([]ratelimit.Decision, 2))
		if !strings.HasPrefix(fmt.Sprint(err), test.want) {
			t.Errorf("%+v: error %v, want %s", test.hit, err, test.want)
		}
		var field *ratelimit.FieldError
		if err != nil && !errors.As(err, &field) {
			t.Errorf("%+v: error %v, want a FieldError", test.hit, err)
		}
	}
}

// allKeys returns keys that hold each byte, and each character of Unicode, once.
func allKeys() []string {
	var keys []string
	for b := range 256 {
		keys = append(keys, string([]byte{byte(b)}))
	}
	var text strings.Builder
	for r := rune(0); r <= 0x10ffff; r++ {
		if r >= 0xd800 && r < 0xe000 {
			// A surrogate is not a character, so the text gets the bytes that UTF-8 would have for it.
			text.Write([]byte{0xed, byte(0x80 | r>>6&0x3f), byte(0x80 | r&0x3f)})
		} else {
			text.WriteRune(r)
		}
		if r%64 == 63 {
			keys = append(keys, text.String())
			text.Reset()
		}
	}
	return keys
}

// Each key has its own row, whatever bytes and characters it holds. It is stored as it is, or as its digest
// if it is secret, too long, no text for Postgres, or looks like a digest.
func TestEveryKeyHasItsOwnRow(t *testing.T) {
	longest := strings.Repeat("k", ratelimit.MaxKey)
	keys := append(allKeys(), "", longest, longest+"k", "xsha256:", "sha256:", "sha256:abc",
		ratelimit.DigestKey("k"))
	keyOf := map[string]string{} // by row
	for _, key := range keys {
		digest := ratelimit.DigestKey(key)
		isDigested := len(key) > ratelimit.MaxKey || !utf8.ValidString(key) ||
			strings.Contains(key, "\x00") || strings.HasPrefix(key, "sha256:")
		for _, secret := range []bool{false, true} {
			want := key
			if secret || isDigested {
				want = digest
			}
			row := (&ratelimit.Hit{Key: key, Secret: secret}).StoredKey()
			if other, ok := keyOf[row]; row != want || ok && other != key {
				t.Errorf("%.20q is stored as %.20q, like %.20q, want %.20q", key, row, other, want)
			}
			keyOf[row] = key
		}
	}
	const want = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
	if got := ratelimit.DigestKey("abc"); got != want {
		t.Errorf("the digest of abc is %s, want %s", got, want)
	}
}
