package traefikplugin

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// TestFrequentKeysAreAsAll: the keys that fill makes by itself are those of expand.
func TestFrequentKeysAreAsAll(t *testing.T) {
	addresses, err := newAddresses(nil)
	if err != nil {
		t.Fatal(err)
	}
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.SampledFrom([]string{"", "a", "192.0.2.1", "192.0.2.1:80", "2001:db8::1", "[2001:db8::1]:80", "::ffff:192.0.2.1", "[::ffff:192.0.2.1]:1", "x:y", "fe80::1%eth0", ":"})
		key, err := parseTemplate("key", rapid.SampledFrom([]string{"{remote_ip}", "{client_ip}", "{header.X-Key}", "all", "{header.X-Key}|{path}"}).Draw(t, "key"))
		if err != nil {
			t.Fatal(err)
		}
		f := newHitTemplate([]*zone{{
			limit: &ratelimit.Limit{Prefix: "p"}, key: key, cost: 1,
			ipv4: rapid.SampledFrom([]int{32, 24, 8}).Draw(t, "ipv4"), ipv6: rapid.SampledFrom([]int{128, 64, 48}).Draw(t, "ipv6"),
		}}, addresses, edge.Fields{X: true})
		f.warnings = &emptyKeys{logger: &logger{}, logged: map[string]bool{"p": true}}
		p := newPendingRequest()
		p.hits = f
		p.r = httptest.NewRequest(http.MethodGet, "/a", nil)
		p.r.RemoteAddr = text.Draw(t, "address")
		p.r.Header["X-Key"] = rapid.SliceOfN(text, 0, 2).Draw(t, "values")
		fill([]*batch.Call{p.call})
		if want := expand(f.keys[0], p.r, addresses, f.ipv4s[0], f.ipv6s[0]); p.call.Hits[0].Key != want {
			t.Fatalf("%q, want %q", p.call.Hits[0].Key, want)
		}
	})
}
