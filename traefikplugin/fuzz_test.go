package traefikplugin

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// FuzzTemplates configures any text as a key, a cost, a matcher or an address. Either an error names the
// setting, or the template returns a text for any request.
func FuzzTemplates(f *testing.F) {
	for _, text := range []string{
		"{client_ip}", "{header.X-Key}|{cookie.id} | {path}", "t:{query.a}{uri}{query}",
		"{labels.99999999999}", "{path.0}{dir}{file}{port}", "{{host}}", "X-Plan: gold", "10.0.0.0/8",
		"/api/*", "*.example.com", "::1",
	} {
		f.Add(text, "203.0.113.1, [2001:db8::1]:80,,10.0.0.1")
	}
	f.Fuzz(func(t *testing.T, text, sent string) {
		r := httptest.NewRequest(http.MethodGet, "http://example.com/a/b?a=1", nil)
		r.Host, r.RemoteAddr, r.URL.Path, r.URL.RawQuery = sent, sent, sent, sent
		for _, name := range []string{"X-Key", "Cookie", "X-Forwarded-For", "X-Plan"} {
			r.Header.Set(name, sent)
		}
		if t1, err := (&addresses{plain: true}).parseText("key", text); err != nil {
			var wrong *ratelimit.FieldError
			if !errors.As(err, &wrong) || wrong.Field != "key" || wrong.Value != text {
				t.Errorf("%q: %v", text, err)
			}
		} else if got := t1.Key(&serve.Request{HTTP: r}, 24, 64); t1.Parts().Fixed &&
			!strings.ContainsAny(text, "{}") && got != text {
			t.Errorf("%q is %q", text, got)
		}
		for _, strategy := range []*IPStrategy{{Depth: 2}, {ExcludedIPs: []string{text}},
			{ExcludedIPs: []string{"10.0.0.0/8"}}} {
			a, err := newAddresses(strategy)
			if err != nil {
				continue
			}
			if address, _ := a.client(r); address != "" && !strings.Contains(sent, address) {
				if _, err := parseAddress(address); err != nil {
					t.Errorf("the client of %q is %q", sent, address)
				}
			}
		}
		for _, change := range []func(*Config){
			func(c *Config) { c.Other["key"] = text }, func(c *Config) { c.Other["cost"] = text },
			func(c *Config) { c.Match = &serve.Match{Headers: []string{text}, Methods: []string{"GET"}} },
			func(c *Config) { c.Match = &serve.Match{Paths: []string{text}, Hosts: []string{text}} },
		} {
			c := valid()
			change(c)
			made, err := c.compile()
			if err != nil {
				var wrong *ratelimit.FieldError
				if !errors.As(err, &wrong) || wrong.Field == "" || wrong.Want == "" {
					t.Errorf("%q: %v", text, err)
				}
				continue
			}
			if match := made.site.Zones[0].Match; match != nil {
				if _, err := match(r); err != nil {
					t.Error(err)
				}
			}
		}
	})
}
