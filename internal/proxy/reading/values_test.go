package reading_test

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/reading"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// A client that writes a value in several ways has one key. The lines of the transcript are:
//
//	header NAME ~ LINES          the values of a header
//	cookie LINE                  the values of the cookie session
//	query TEXT                   the values of the parameter q
//	texts NAMES ~ LINES          the texts of placeholders
//	host HOST                    the labels of a host, and its {hostport}
//	cost, path, url TEXT         each in its form
//	network V4/V6 ADDRESS        the client of an address, for the prefixes of IPv4 and IPv6
//
// LINES are lines of headers, between " ~ ". A quoted value is a Go string.
func TestValuesHaveOneForm(t *testing.T) {
	golden.ReplayLines(t, "testdata/values.txt", func(t *testing.T, kind, text string) string {
		text, r := harness.InLines(t, text)
		switch kind {
		case "header":
			return strings.Join(policy.HeaderValues(r.Header, text), ",")
		case "cookie":
			r.Header["Cookie"] = []string{text}
			return strings.Join(reading.CookieValues(r, "session"), ",")
		case "query":
			return strings.Join(reading.QueryValues(&url.URL{RawQuery: text}, "q"), ",")
		case "texts":
			return valuesIn(t, r, strings.Fields(text)...)
		case "host":
			r.Host = text
			return valuesIn(t, r, "labels.0") + " " + valuesIn(t, r, "labels.1") + " " +
				valuesIn(t, r, "labels.2") + " " + valuesIn(t, r, "labels.3") + valuesIn(t, r, "hostport")
		case "cost":
			return fmt.Sprint(reading.ParseCost(text))
		case "network":
			prefixes, address, _ := strings.Cut(text, " ")
			v4, v6, _ := strings.Cut(prefixes, "/")
			l, err := settings.ReadLimit(settings.Values{"prefix": "a", "limit": "5 1m", "ipv4_prefix": v4,
				"ipv6_prefix": v6})
			if err != nil {
				t.Fatal(err)
			}
			return reading.Network(address, l.IPv4, l.IPv6)
		}
		return pathOf(t, kind, text)
	})
}

// pathOf returns the form of a path or a URL. Traefik passes a path that it has normalized.
func pathOf(t *testing.T, kind, text string) string {
	if kind == "path" {
		got, u := reading.NormalizePath(text), url.URL{Path: text}
		if text != "" && text != "*" {
			check.Equal(t, text+" in Traefik", u.JoinPath().Path, got)
		}
		return got
	}
	u, err := url.ParseRequestURI(text)
	if err != nil || kind != "url" {
		t.Fatalf("%s %s: %v", kind, text, err)
	}
	got := reading.CleanURL(u).RequestURI()
	check.Equal(t, text+" after CleanURL", u.RequestURI(), text)
	check.Equal(t, text+" in Traefik", reading.CleanURL(u.JoinPath()).RequestURI(), got)
	return got
}

// valuesIn returns the values of a text of placeholders in a request.
func valuesIn(t *testing.T, r *http.Request, names ...string) string {
	t.Helper()
	text := &reading.Text{}
	for _, name := range names {
		if !text.Add(name) {
			t.Fatalf("{%s} is no placeholder", name)
		}
	}
	values := text.Values(&reading.Input{HTTP: r})
	if values == nil {
		return "too many"
	}
	return strings.Join(values, ",")
}

// FuzzValuesOfRequests uses any text as a cost, address, path or query. The cost must refund nothing, and
// each value must have one form.
func FuzzValuesOfRequests(f *testing.F) {
	for _, seed := range []string{"18446744073709551616", "-1", "::ffff:192.0.2.1", "2001:DB8::1%eth0",
		"1.000", "+5", "/a/../b?x;y", "//..//%2e"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if cost := reading.ParseCost(text); cost < 1 {
			t.Errorf("ParseCost(%q) = %d, want at least 1", text, cost)
		}
		for _, v4 := range []int{24, 32} {
			once := reading.Network(text, v4, 64)
			if twice := reading.Network(once, v4, 64); twice != once {
				t.Errorf("Network(%q) = %q, and Network of the result %q, want the same", text, once, twice)
			}
		}
		once := reading.NormalizePath(text)
		if twice := reading.NormalizePath(once); twice != once {
			t.Errorf("NormalizePath(%q) = %q, and of the result %q, want the same", text, once, twice)
		}
		if u, err := url.ParseRequestURI(text); err == nil {
			once := reading.CleanURL(u)
			if twice := reading.CleanURL(once); twice.String() != once.String() {
				t.Errorf("CleanURL(%q) = %q, and of the result %q, want the same", u, once, twice)
			}
			got, want := reading.QueryValues(once, "a"), reading.QueryValues(u, "a")
			if !slices.Equal(got, want) {
				t.Errorf("the query of CleanURL(%q) has a=%q, want %q", u, got, want)
			}
		}
	})
}
