package serve

import (
	"math/rand/v2"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/reading"
)

// setFacts does not normalize hosts, paths and API keys that have a usual form, to save time. Its facts
// nevertheless equal those of package policy, which normalizes every form.
func TestFactsAreNormalized(t *testing.T) {
	s := &Site{
		Log:    func(host.Line) {},
		Policy: &Policy{Keys: []*reading.Text{{}}, key: "Authorization", tier: "t"},
		Clients: &reading.Clients{
			Address: func(*http.Request) (a netip.Addr, assumed bool) { return a, false },
		},
	}
	s.Policy.Keys[0].Add("header.Authorization")
	random := rand.New(rand.NewPCG(1, 2))
	join := func(parts ...string) string {
		joined := ""
		for range random.IntN(7) {
			joined += parts[random.IntN(len(parts))]
		}
		return joined
	}
	asSent, changed := 0, 0
	for range 20000 {
		u, err := url.Parse("http://a.test" + "/" + join("/", "a", "B", ".", "..", "%2f", "%41", "\\", "é",
			"~", "-", "%", "*"))
		if err != nil {
			continue
		}
		if random.IntN(50) == 0 {
			u = &url.URL{Path: "*"}
		}
		r := &http.Request{Method: http.MethodGet, URL: u, Header: http.Header{},
			RemoteAddr: "192.0.2.1:1234"}
		r.Host = join("a", "B", ".", "-", "_", ":", "80", "[", "]", "::1", "é", "É", "test")
		sent := join(policy.KeyPrefix, "x", "Bearer ", "bearer ", " ", "\t", "\u00a0")
		r.Header["Authorization"] = []string{sent}
		q := &Request{}
		q.HTTP = r
		f := &q.Facts
		ok := setFacts(s, q) == policy.NoReason
		path := policy.NormalPath(u.EscapedPath())
		if ok != (path != "") || f.Path != path {
			t.Fatalf("path %q: got %q and %v, want %q", u.EscapedPath(), f.Path, ok, path)
		}
		if want := policy.NormalHost(r.Host); f.Host != want {
			t.Fatalf("host %q: got %q, want %q", r.Host, f.Host, want)
		}
		want := policy.Bearer(sent)
		words := strings.Fields(sent)
		if strings.ContainsAny(want, " \t") && !strings.EqualFold(words[0], "bearer") {
			want = "" // another scheme
		}
		if q.Key != want {
			t.Fatalf("header %q: got key %q, want %q", sent, q.Key, want)
		}
		if f.Path == u.EscapedPath() && f.Host == r.Host && strings.HasSuffix(sent, q.Key) {
			asSent++
		} else {
			changed++
		}
	}
	if asSent < 100 || changed < 100 {
		t.Errorf("%d requests are as sent and %d are not, want at least 100 of each", asSent, changed)
	}
}
