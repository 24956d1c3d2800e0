package traefikplugin

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"pgregory.net/rapid"

	"github.com/pgratelimit/pg-ratelimit/internal/core/batch"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// TestFrequentKeysAreAsAll: the keys that fill makes by itself are those of expand.
func TestFrequentKeysAreAsAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.SampledFrom([]string{"", "a", "192.0.2.1", "192.0.2.1:80", "2001:db8::1", "[2001:db8::1]:80", "::ffff:192.0.2.1", "[::ffff:192.0.2.1]:1", "x:y", "fe80::1%eth0", ":"})
		settings := Zone{Other: Settings{"prefix": "p", "limit": "1 1h", "hashKey": "off", "key": rapid.SampledFrom([]string{"{remote_ip}", "{client_ip}", "{header.X-Key}", "all", "{header.X-Key}|{path}", "{header.X-Key} | {client_ip}"}).Draw(t, "key"),
			"ipv4Prefix": rapid.SampledFrom([]string{"32", "24", "8"}).Draw(t, "ipv4"), "ipv6Prefix": rapid.SampledFrom([]string{"128", "64", "48"}).Draw(t, "ipv6")}}
		made, err := (&Config{Zones: []Zone{settings}}).compile()
		if err != nil {
			t.Fatal(err)
		}
		site := made.site
		site.Prepare()
		q := newRequest()
		q.Site = site
		q.Limits = site.Same()
		q.HTTP = httptest.NewRequest(http.MethodGet, "/a", nil)
		q.HTTP.RemoteAddr = text.Draw(t, "address")
		q.HTTP.Header["X-Key"] = rapid.SliceOfN(text, 0, 2).Draw(t, "values")
		fill([]*batch.Call{q.Call})
		var want ratelimit.Hit
		if serve.SetKey(site.Zones[0], q, &want); q.Call.Hits[0].Key != want.Key {
			t.Fatalf("%q, want %q", q.Call.Hits[0].Key, want.Key)
		}
	})
}
