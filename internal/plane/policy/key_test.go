package policy_test

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
)

func newKey(t testing.TB) string {
	t.Helper()
	key, err := policy.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// New keys differ, have the documented form, and have a secret of random digits.
func TestNewKeysAreRandom(t *testing.T) {
	seen, digits := map[string]bool{}, map[string]int{}
	for range 1000 {
		key := newKey(t)
		if seen[key] || len(key) != 37 || !strings.HasPrefix(key, "prl_") || !policy.Check(key) {
			t.Fatalf("NewKey: got %q, want another prl_, 33 characters and a valid checksum", key)
		}
		seen[key] = true
		for i, digit := range key[5:31] {
			digits[fmt.Sprintf("%c at %d", digit, i)]++
		}
	}
	// Each of 62 digits is at each of 26 places 16 times, and with a fair source hardly ever 60 times.
	for place, n := range digits {
		if n > 60 {
			t.Errorf("the digit %s of 1000 keys: got it %d times, want about 16", place, n)
		}
	}
	if len(digits) < 60*26 {
		t.Errorf("got %d different digits at the places of 1000 keys, want 62 at 26", len(digits))
	}
}

// The checksum detects every mistyped character and every two swapped neighbors.
func TestCheckRejectsMistypedKeys(t *testing.T) {
	// Keys that an earlier release created must stay valid.
	for _, old := range []string{"prl_0000000000000000000000000003aBIz1",
		"prl_4cQx0aZ0bY1cX2dW3eV4fU5gT6h2cTYVB"} {
		check.Equal(t, "Check("+old+")", policy.Check(old), true)
	}
	key := newKey(t)
	for i := range key {
		for _, wrong := range []byte("0Aaz_- \x00\xff") {
			if typed := key[:i] + string(wrong) + key[i+1:]; typed != key && policy.Check(typed) {
				t.Errorf("Check(%q): got true, want false, as it is not %q", typed, key)
			}
		}
		if i > 0 {
			typed := []byte(key)
			typed[i-1], typed[i] = typed[i], typed[i-1]
			if string(typed) != key && policy.Check(string(typed)) {
				t.Errorf("Check(%q): got true, want false, as it is not %q", typed, key)
			}
		}
	}
	for _, typed := range []string{"", "prl_", key + "0", key[:36], strings.ToUpper(key),
		strings.TrimPrefix(key, "prl_"), " " + key[1:]} {
		if policy.Check(typed) {
			t.Errorf("Check(%q): got true, want false, as it is not %q", typed, key)
		}
	}
}

// A hint is the first 8 characters of a key with a valid checksum. Any other text has no hint, because it may
// be another secret. The digest of a key is its SHA-256.
func TestHintShowsLittle(t *testing.T) {
	key := newKey(t)
	if hint := policy.Hint(key); hint != key[:8]+"..." {
		t.Errorf("Hint(%s): got %s, want KeyPrefix and four characters", key, hint)
	}
	for _, foreign := range []string{"", "sk_live_secret", "prl_secret", key[:36] + "!"} {
		if hint := policy.Hint(foreign); hint != "" {
			t.Errorf("Hint(%q): got %q, want none", foreign, hint)
		}
	}
	if got, want := policy.Digest(key), fmt.Sprintf("%x", sha256.Sum256([]byte(key))); got != want {
		t.Errorf("Digest(%s): got %s, want %s", key, got, want)
	}
}

// Generated keys, and the key of the request, are replaced in hosts and paths, also in another case or if
// they are percent-encoded.
func TestHideKeysInHostsAndPaths(t *testing.T) {
	const key = "prl_4cQx0aZ0bY1cX2dW3eV4fU5gT6h2cTYVB"
	for _, step := range []struct{ text, key, want string }{
		{"/a/b", "", "/a/b"},
		{"/prl_/prl_abcd/x_y", "", "/prl_/prl_abcd/x_y"},
		{"/a/" + key + "/b", "", "/a/(key)/b"},
		{"/" + key + ";" + key[:9] + "/prl_", "", "/(key);(key)/prl_"},
		{strings.ToLower(key) + ".example.com", "", "(key).example.com"},
		{"/a/" + strings.ToUpper(key), "", "/a/(key)"},
		{"/a%2F%70rl_4cQx0aZ0b", "", "/a/(key)"},
		{"/a%2Fb_c/%zz", "", "/a%2Fb_c/%zz"},
		{"/a/our-own/b/our-own", "our-own", "/a/(key)/b/(key)"},
		{"/a/our%2Down", "our-own", "/a/(key)"},
		{`/a/our\own`, "our/own", "/a/(key)"},
		{"/\u0130" + key, "", "/\u0130(key)"},
	} {
		if got := policy.HideKeys(step.text, step.key); got != step.want {
			t.Errorf("HideKeys(%q, %q): got %q, want %q", step.text, step.key, got, step.want)
		}
	}
}
