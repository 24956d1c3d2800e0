package history_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/core/outcome"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
)

// If addresses are masked, the full address of a client is neither in the column address nor in a key. Each
// line of the file is the address, the key, and in braces the column named also.
func TestAddressesInKeysAreMasked(t *testing.T) {
	d := newTestDB(t)
	add := func(w *history.Writer, address string, keys ...string) {
		for _, key := range keys {
			history.Add(w, &history.Record{Time: baseTime, Address: netip.MustParseAddr(address), Key: key,
				Also: []string{"p", key}, Audit: auditAll})
		}
	}
	shown := ""
	for _, mode := range []option.AddressMode{option.AddressFull, option.AddressPrefix, option.AddressOff} {
		w := d.newWriter(history.Settings{Address: mode})
		add(w, "192.0.2.77", "192.0.2.77", "anna|192.0.2.77", "198.51.100.0/25", "anna")
		add(w, "2001:db8:1:2::3", "2001:db8:1:2::/64", "2001:db8:1:2::/64 x 2001:db8:1:2::3")
		add(w, "::ffff:192.0.2.9", "::ffff:192.0.2.9")
		flush(t, w)
		shown += fmt.Sprintf("%v:\n%s\n", mode, d.Query(`SELECT CASE WHEN masklen(address) IN (32, 128)
			THEN host(address) ELSE address::text END, key, also::text FROM rate_limit_audit ORDER BY ctid`))
		d.truncateAll()
	}
	golden.Check(t, "testdata/addresses.txt", shown)
}

// Hosts, paths, methods and users from clients are stored without queries and invalid text.
func TestTablesHaveNoQueriesAndValidText(t *testing.T) {
	d := newTestDB(t)
	w := d.newWriter(history.Settings{})
	long := strings.Repeat("ä", 3000)
	for _, r := range []history.Record{
		{Path: "/a?api_key=secret", Host: "h"},
		{Path: "/b\x00\xff?token=secret", Host: "h\x00\xff", Method: "G\x00", User: "u\x00\xff", Key: "k\xff",
			Endpoint: "r\xff", Prefix: "rule/p\x00/l\x00", Tier: "t\x00", Reason: "r\x00"},
		{Path: "/" + long, Host: long, Method: long, User: long, Key: long, Endpoint: long, Prefix: long,
			Tier: long, Reason: long, Also: []string{long, long}},
	} {
		r.Time = baseTime
		r.Outcome = outcome.Limited
		r.Audit = auditAll
		history.Add(w, &r)
	}
	flush(t, w)
	stored := d.Query("SELECT row_to_json(a)::text FROM rate_limit_audit a") +
		d.Query("SELECT row_to_json(m)::text FROM rate_limit_metrics m")
	if strings.Contains(stored, "secret") {
		t.Errorf("tables: got %s, want no secret from a query", stored)
	}
	check.Equal(t, "rows", d.Query("SELECT path, host, method, user_id, key FROM rate_limit_audit WHERE "+
		"length(path) < 100 ORDER BY path"), "/a h - - -\n/b?? h?? G? u?? k?")
	check.Equal(t, "lengths",
		d.Query("SELECT length(path), octet_length(host), octet_length(user_id), octet_length(key) FROM "+
			"rate_limit_audit WHERE length(path) > 100"), "500 254 512 512")
	if stats := w.Stats(); stats.Written != 3 || stats.DroppedMetrics != 0 {
		t.Errorf("Stats: got %+v, want 3 written and no drops", stats)
	}
}

// FuzzTextsOfClients checks that Postgres can store each text of a client after it was cleaned, that the text
// is not longer than its column allows, and that a masked key does not contain the address.
func FuzzTextsOfClients(f *testing.F) {
	for _, value := range []string{"", "/a", "a?b", "\xff\x00", strings.Repeat("ä", 300),
		strings.Repeat("\x80", 999), "192.0.2.1", "2001:db8::/64", "x 2001:db8::1"} {
		f.Add(value)
	}
	client := netip.MustParseAddr("2001:db8::1")
	f.Fuzz(func(t *testing.T, value string) {
		path := history.CleanPath(value)
		for _, got := range []string{history.CleanText(value, 255), path,
			history.CleanText(history.MaskKey(option.AddressPrefix, value, client), 512)} {
			if !utf8.ValidString(got) || strings.IndexByte(got, 0) >= 0 {
				t.Errorf("cleaning %q: got %q, want UTF-8 without NUL", value, got)
			}
		}
		if n := utf8.RuneCountInString(path); n > 500 {
			t.Errorf("CleanPath(%q): got %d characters, want at most 500", value, n)
		}
		// In a valid text, CleanPath replaces no byte by a question mark.
		isValid := utf8.ValidString(value) && !strings.Contains(value, "\x00")
		if isValid && strings.Contains(path, "?") {
			t.Errorf("CleanPath(%q): got %q, want no query", value, path)
		}
		if got := history.CleanText(value, 255); len(got) > 255 {
			t.Errorf("CleanText(%q): got %d bytes, want at most 255", value, len(got))
		}
		masked := history.MaskKey(option.AddressOff, value, client)
		if strings.Contains(masked, client.String()) {
			t.Errorf("MaskKey(%q): got %q, want it without the address", value, masked)
		}
	})
}
