package traefikplugin

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

func request(t *testing.T) *http.Request {
	t.Helper()
	r := httptest.NewRequest(http.MethodPost, "http://example.com:8080/a/b?q=1&q=2&empty=", nil)
	r.RemoteAddr = "192.0.2.7:1234"
	r.Header.Set("X-Tenant", "acme")
	r.Header.Add("X-Many", "a")
	r.Header.Add("X-Many", "b")
	r.AddCookie(&http.Cookie{Name: "Session", Value: "s1"})
	return r
}

func TestPlaceholdersOfAKey(t *testing.T) {
	for text, want := range map[string]string{
		"{client_ip}":                          "192.0.2.7",
		"{remote_ip}":                          "192.0.2.7",
		"{host}":                               "example.com",
		"{method}":                             "POST",
		"{path}":                               "/a/b",
		"{header.x-tenant}":                    "acme",
		"{header.X-Many}":                      "a,b",
		"{header.X-None}":                      "",
		"{cookie.session}":                     "s1",
		"{cookie.none}":                        "",
		"{query.q}":                            "1,2",
		"{query.empty}{query.none}":            "",
		"{remote_host}":                        "192.0.2.7",
		"{hostport} {port} {scheme}":           "example.com:8080 8080 http",
		"{uri} {query}":                        "/a/b?q=1&q=2&empty= q=1&q=2&empty=",
		"{dir} {file} {path.0} {path.1}":       "/a/ b a b",
		"{path.2}{labels.2}":                   "",
		"{labels.0} {labels.1}":                "com example",
		"everybody":                            "everybody",
		"t:{header.X-Tenant}:{method} {path}!": "t:acme:POST /a/b!",
	} {
		parsed, err := (&addresses{plain: true}).parseText("key", text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := parsed.Key(&edge.Request{HTTP: request(t)}, 32, 64); got != want {
			t.Errorf("%s is %q, want %q", text, got, want)
		}
	}
}

func TestUnknownPlaceholdersAreRefused(t *testing.T) {
	for _, text := range []string{"{", "}", "a{b", "a}b", "{}", "{client_ip", "client_ip}", "{{client_ip}}", "{client_ip}}", "{CLIENT_IP}", "{header}", "{header.}", "{nothing.x}", "{path.x}", "{labels.-1}", "{uuid}", "{cookie. }x{"} {
		_, err := (&addresses{plain: true}).parseText("zones[1].key", text)
		var field *ratelimit.FieldError
		if !errors.As(err, &field) || field.Field != "zones[1].key" || field.Value != text {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestCredentialsInAKeyAreSecret(t *testing.T) {
	for text, want := range map[string]bool{
		"{client_ip}":               false,
		"{header.X-Tenant}":         false,
		"{query.page}":              false,
		"{header.authorization}":    true,
		"a {header.X-API-Key} b":    true,
		"{cookie.any}":              true,
		"{query.access_token}":      true,
		"{query}":                   true,
		"{uri}":                     true,
		"{client_ip}{query.apikey}": true,
	} {
		parsed, err := (&addresses{plain: true}).parseText("key", text)
		if err != nil {
			t.Fatal(err)
		}
		if parsed.Secret() != want {
			t.Errorf("%s: secret is %v", text, !want)
		}
	}
}
