package serve_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
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
		{http.Header{"Proxy-Authorization": {"basic YW5uOng-"}}, "Proxy-Authorization",
			"basic YW5uOng+,basic YW5uOng="},
		{http.Header{"Authorization": {"Basic YW5uOnB3"}}, "Authorization", "basic YW5uOnB3"},
		{http.Header{"Authorization": {"Basic YW5uOnA"}}, "Authorization", "basic YW5uOnA="},
		{http.Header{"Authorization": {"Basic YW5uOnB="}}, "Authorization", "basic YW5uOnA="},
		{http.Header{"Authorization": {"Basic YW5u OnB3"}}, "Authorization", "basic YW5uOnB3"},
		{http.Header{"Authorization": {"Basic YW5u.OnB3==.w"}}, "Authorization", "basic YW5uOnB3"},
		{http.Header{"Authorization": {"K"}}, "Authorization", "K"},
		{http.Header{"X-User": {"Bearer K"}}, "X-User", "Bearer K"},
		{http.Header{"X-User": {"L", "L"}}, "X-User", "L"},
		{http.Header{"X-User": {"L", "M", "L"}}, "X-User", "L,M"},
		{http.Header{"x-user": {"ann"}}, "X-User", "ann"},
		{http.Header{"X-User": {"ann"}, "x-useR": {"bob"}}, "X-User", "ann,bob"},
		{http.Header{"X-Used": {"ann"}}, "X-User", ""},
	} {
		if got := strings.Join(policy.HeaderValues(test.header, test.name), ","); got != test.want {
			t.Errorf("%s of %v: got %q, want %q", test.name, test.header, got, test.want)
		}
	}
}

// A cookie is found by its exact name. Quotes and escapes do not change the value.
func TestCookieHasOneFormInEachSpelling(t *testing.T) {
	for line, want := range map[string]string{
		"session=S":              "S",
		"Session=1; session=S":   "S",
		"SESSION=1; session=S;":  "S",
		"session=%53":            "S",
		`session="S"`:            "S",
		"session=100%":           "100%",
		"session=%53%":           "S%",
		"session=S; session=%53": "S",
		"session=S; session=17":  "S,17",
		`session=a\b`:            `a\b`, // net/http ignores the cookie, and other servers do not
		"Session=S":              "",
	} {
		r := &http.Request{Header: http.Header{"Cookie": {line}}}
		if got := strings.Join(serve.CookieValues(r, "session"), ","); got != want {
			t.Errorf("session of %q: got %q, want %q", line, got, want)
		}
	}
}

// valuesIn returns the values of a text of placeholders in a request.
func valuesIn(t *testing.T, r *http.Request, names ...string) string {
	t.Helper()
	text := &serve.Text{}
	for _, name := range names {
		if !text.Add(name) {
			t.Fatalf("{%s} is no placeholder", name)
		}
	}
	values := text.Values(&serve.Request{HTTP: r})
	if values == nil {
		return "too many"
	}
	return strings.Join(values, ",")
}

// A final dot, a port and upper case do not move the labels of a host. A port has no leading zeros.
func TestHostHasOneFormInEachSpelling(t *testing.T) {
	for host, hostport := range map[string]string{"ten.example.com": "ten.example.com",
		"ten.example.com.": "ten.example.com", "TEN.Example.com:8080": "ten.example.com:8080",
		"ten.example.com.:080": "ten.example.com:80"} {
		r := &http.Request{Host: host}
		for n, want := range []string{"com", "example", "ten", ""} {
			if got := valuesIn(t, r, fmt.Sprint("labels.", n)); got != want {
				t.Errorf("label %d of %q: got %q, want %q", n, host, got, want)
			}
		}
		if got := valuesIn(t, r, "hostport"); got != hostport {
			t.Errorf("hostport of %q: got %q, want %q", host, got, hostport)
		}
	}
}

// Several values of several placeholders make a text for each combination, up to four.
func TestSeveralValuesMakeSeveralTexts(t *testing.T) {
	r := &http.Request{Header: http.Header{"A": {"1", "2"}, "B": {"x", "x", "y"}, "C": {"", "z"},
		"D": {"1", "2", "3", "4", "5"}}}
	for _, test := range []struct {
		names []string
		want  string
	}{
		{[]string{"header.A"}, "1,2"},
		{[]string{"header.A", "header.B"}, "1x,1y,2x,2y"},
		{[]string{"header.C"}, ",z"},
		{[]string{"header.A", "header.B", "header.C"}, "too many"},
		{[]string{"header.A", "header.E"}, "1,2"},
		{[]string{"header.D", "header.E"}, "too many"},
		{[]string{"header.D"}, "1,2,3,4,5"},
	} {
		if got := valuesIn(t, r, test.names...); got != test.want {
			t.Errorf("%v: got %q, want %q", test.names, got, test.want)
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
