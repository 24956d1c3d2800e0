package serve_test

import (
	"net/http"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
)

// Each spelling of a header's name and value gives one text. Equal lines count as one.
func TestHeaderHasOneFormInEachSpelling(t *testing.T) {
	for _, test := range []struct {
		header http.Header
		name   string
		want   string
	}{
		{http.Header{"Authorization": {"Bearer K"}}, "Authorization", "bearer K"},
		{http.Header{"Authorization": {"BEARER \t K"}}, "Authorization", "bearer K"},
		{http.Header{"Authorization": {" beARer  K "}}, "Authorization", "bearer K"},
		{http.Header{"Authorization": {"Bearer K", "bearer K"}}, "Authorization", "bearer K"},
		{http.Header{"authorization": {"Bearer K"}}, "Authorization", "bearer K"},
		{http.Header{"Proxy-Authorization": {"basic YW5uOng-"}}, "Proxy-Authorization", "basic YW5uOng+"},
		{http.Header{"Authorization": {"Basic YW5uOnB3"}}, "Authorization", "basic YW5uOnB3"},
		{http.Header{"Authorization": {"Basic YW5uOnA"}}, "Authorization", "basic YW5uOnA="},
		{http.Header{"Authorization": {"Basic YW5uOnB="}}, "Authorization", "basic YW5uOnA="},
		{http.Header{"Authorization": {"K"}}, "Authorization", "K"},
		{http.Header{"X-User": {"Bearer K"}}, "X-User", "Bearer K"},
		{http.Header{"X-User": {"L", "L"}}, "X-User", "L"},
		{http.Header{"X-User": {"L", "M", "L"}}, "X-User", "L,M"},
		{http.Header{"x-user": {"ann"}}, "X-User", "ann"},
		{http.Header{"X-User": {"ann"}, "x-useR": {"bob"}}, "X-User", "ann,bob"},
		{http.Header{"X-Used": {"ann"}}, "X-User", ""},
	} {
		if got := serve.HeaderValue(test.header, test.name); got != test.want {
			t.Errorf("%s of %v: got %q, want %q", test.name, test.header, got, test.want)
		}
	}
}

// A cookie is found by its exact name. Quotes and escapes do not change the value.
func TestCookieHasOneFormInEachSpelling(t *testing.T) {
	for line, want := range map[string]string{
		"session=S":             "S",
		"Session=1; session=S":  "S",
		"SESSION=1; session=S;": "S",
		"session=%53":           "S",
		`session="S"`:           "S",
		"session=100%":          "100%",
		"Session=S":             "",
	} {
		r := &http.Request{Header: http.Header{"Cookie": {line}}}
		if got := serve.CookieValue(r, "session"); got != want {
			t.Errorf("session of %q: got %q, want %q", line, got, want)
		}
	}
}

// A final dot, a port and upper case do not move the labels of a host.
func TestHostSpellingsHaveSameLabels(t *testing.T) {
	for _, host := range []string{"ten.example.com", "ten.example.com.", "TEN.Example.com:8080",
		"ten.example.com.:80"} {
		r := &http.Request{Host: host}
		for n, want := range []string{"com", "example", "ten", ""} {
			if got := serve.HostLabel(r, n); got != want {
				t.Errorf("label %d of %q: got %q, want %q", n, host, got, want)
			}
		}
	}
}

// Of several costs, the largest counts.
func TestLargestCostCounts(t *testing.T) {
	for text, want := range map[string]int64{
		"1,100": 100, "100,1": 100, "1, 7": 7, "x,3": 3, "x": 1, "-5,0": 1, "": 1,
		"2,99999999999999999999": 1 << 62,
	} {
		if got := serve.ParseCost(text); got != want {
			t.Errorf("cost %q: got %d, want %d", text, got, want)
		}
	}
}
