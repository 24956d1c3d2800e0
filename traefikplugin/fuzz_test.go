package traefikplugin

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// FuzzConfigurationIsValidOrNamesSetting configures any text as a key, a cost, a matcher or an address.
// Either the configuration is rejected with an error that names the setting, or it evaluates every request
// without an error.
func FuzzConfigurationIsValidOrNamesSetting(f *testing.F) {
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
			if want := fmt.Sprintf("key: %q: must be ", text); !strings.HasPrefix(err.Error(), want) {
				t.Errorf("parseText(%q): error %v, want %s", text, err, want)
			}
		} else if got := t1.Values(&serve.Request{HTTP: r}); t1.Fixed && (len(got) != 1 || got[0] != text) {
			t.Errorf("Values() of %q = %q, want the text", text, got)
		}
		for _, strategy := range []*IPStrategy{{Depth: 2}, {ExcludedIPs: []string{text}},
			{ExcludedIPs: []string{"10.0.0.0/8"}}} {
			a, err := newAddresses(strategy)
			if err != nil {
				continue
			}
			if address, _ := a.client(r); address != "unknown" && !strings.Contains(sent, address) {
				if _, err := parseAddress(address); err != nil {
					t.Errorf("client() for %q = %q, want an address", sent, address)
				}
			}
		}
		for _, change := range []func(*Config){
			func(c *Config) { c.Other["key"] = text }, func(c *Config) { c.Other["cost"] = text },
			func(c *Config) { c.Match = &serve.Match{Headers: []string{text}, Methods: []string{"GET"}} },
			func(c *Config) { c.Match = &serve.Match{Paths: []string{text}, Hosts: []string{text}} },
		} {
			c := validConfig()
			change(c)
			compiled, err := c.compile()
			if err != nil {
				var fieldErr *ratelimit.FieldError
				if !errors.As(err, &fieldErr) || fieldErr.Field == "" {
					t.Errorf("compile() of %q: error %v, want one for a setting", text, err)
				}
				continue
			}
			if match := compiled.site.Zones[0].Match; match != nil {
				if _, err := match(r); err != nil {
					t.Errorf("match: error %v, want nil", err)
				}
			}
		}
	})
}
