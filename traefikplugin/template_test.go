package traefikplugin

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

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

func TestTemplateExpands(t *testing.T) {
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
		"everybody":                            "everybody",
		"t:{header.X-Tenant}:{method} {path}!": "t:acme:POST /a/b!",
	} {
		parsed, err := parseTemplate("key", text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		if got := expand(parsed, request(t), &addresses{plain: true}); got != want {
			t.Errorf("%s is %q, want %q", text, got, want)
		}
	}
}

func TestTemplateRefusesWhatItDoesNotKnow(t *testing.T) {
	for _, text := range []string{"{", "}", "a{b", "a}b", "{}", "{client_ip", "client_ip}", "{{client_ip}}", "{client_ip}}", "{CLIENT_IP}", "{header}", "{header.}", "{nothing.x}", "{cookie. }x{"} {
		_, err := parseTemplate("zones[1].key", text)
		var field *ratelimit.FieldError
		if !errors.As(err, &field) || field.Field != "zones[1].key" || field.Value != text {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestTemplateKnowsSecrets(t *testing.T) {
	for text, want := range map[string]bool{
		"{client_ip}":               false,
		"{header.X-Tenant}":         false,
		"{query.page}":              false,
		"{header.authorization}":    true,
		"a {header.X-API-Key} b":    true,
		"{cookie.any}":              true,
		"{query.access_token}":      true,
		"{client_ip}{query.apikey}": true,
	} {
		parsed, err := parseTemplate("key", text)
		if err != nil {
			t.Fatal(err)
		}
		if parsed.secret() != want {
			t.Errorf("%s: secret is %v", text, !want)
		}
	}
}
