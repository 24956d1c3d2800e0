package serve_test

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/golden"
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
//	key KEY ~ LINES              the keys of a request, for a key of a zone
//	accepted KEY ~ LINES         the same with the policy's API key K; unknown: without it
//	without HOW/MODE METHOD ~ …  what becomes of a request, for a setting without_key
//
// LINES are lines of headers, between " ~ ". A quoted value is a Go string.
func TestValuesHaveOneForm(t *testing.T) {
	golden.ReplayLines(t, "testdata/values.txt", func(t *testing.T, kind, text string) string {
		text, rest, _ := strings.Cut(text, " ~ ")
		var lines []string
		if rest != "" {
			lines = strings.Split(rest, " ~ ")
		}
		r := requestWith(t, lines...)
		switch kind {
		case "header":
			return strings.Join(policy.HeaderValues(r.Header, text), ",")
		case "cookie":
			r.Header["Cookie"] = []string{text}
			return strings.Join(serve.CookieValues(r, "session"), ",")
		case "query":
			return strings.Join(serve.QueryValues(&url.URL{RawQuery: text}, "q"), ",")
		case "texts":
			return valuesIn(t, r, strings.Fields(text)...)
		case "host":
			r.Host = text
			return valuesIn(t, r, "labels.0") + " " + valuesIn(t, r, "labels.1") + " " +
				valuesIn(t, r, "labels.2") + " " + valuesIn(t, r, "labels.3") + valuesIn(t, r, "hostport")
		case "cost":
			return fmt.Sprint(serve.ParseCost(text))
		case "network":
			prefixes, address, _ := strings.Cut(text, " ")
			v4, v6, _ := strings.Cut(prefixes, "/")
			l, err := settings.ReadLimit(settings.Values{"prefix": "a", "limit": "5 1m", "ipv4_prefix": v4,
				"ipv6_prefix": v6})
			if err != nil {
				t.Fatal(err)
			}
			return serve.Network(address, l.IPv4, l.IPv6)
		case "key":
			return keysOf(newKeySite(t, "", text), r, "")
		case "accepted", "unknown":
			key := map[string]string{"accepted": "K"}[kind]
			return keysOf(newKeySite(t, "{header.Authorization} | {header.X-Api-Key}", text), r, key)
		case "without":
			return withoutKey(t, r, text)
		}
		return pathOf(t, kind, text)
	})
}

// pathOf returns the form of a path or a URL. Traefik passes a path that it has normalized.
func pathOf(t *testing.T, kind, text string) string {
	if kind == "path" {
		got, u := serve.NormalizePath(text), url.URL{Path: text}
		if text != "" && text != "*" {
			check.Equal(t, text+" in Traefik", u.JoinPath().Path, got)
		}
		return got
	}
	u, err := url.ParseRequestURI(text)
	if err != nil || kind != "url" {
		t.Fatalf("%s %s: %v", kind, text, err)
	}
	got := serve.CleanURL(u).RequestURI()
	check.Equal(t, text+" after CleanURL", u.RequestURI(), text)
	check.Equal(t, text+" in Traefik", serve.CleanURL(u.JoinPath()).RequestURI(), got)
	return got
}

// withoutKey returns what becomes of a request, for a setting without_key and a mode.
func withoutKey(t *testing.T, r *http.Request, text string) string {
	how, method, _ := strings.Cut(text, " ")
	how, mode, _ := strings.Cut(how, "/")
	site := newKeySite(t, "", "{header.X}")
	site.Zones[0].WithoutKey = option.Without(strings.TrimPrefix(how, "default"))
	if mode != "" {
		site.Zones[0].Mode = option.Mode(mode)
	}
	site.Prepare()
	r.Method = method
	q := &serve.Request{Site: site, HTTP: r}
	waits, err := serve.Begin(q)
	switch {
	case err != nil:
		t.Fatal(err)
	case q.Outcome.Status != 0:
		return fmt.Sprint(q.Outcome.Status, " ", q.Outcome.Reason)
	case waits:
		serve.Fill([]*serve.Request{q})
		return "[" + q.Hits[0].StoredKey() + "]"
	}
	return "passes"
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
