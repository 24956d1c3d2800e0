package traefikplugin

import (
	"fmt"
	"strings"
	"testing"
)

// A text with an incomplete or invented placeholder is an error that names the setting and the text.
func TestUnknownPlaceholdersAreRefused(t *testing.T) {
	for _, text := range []string{"{", "}", "a{b", "a}b", "{}", "{client_ip", "client_ip}", "{{client_ip}}",
		"{client_ip}}", "{CLIENT_IP}", "{header}", "{header.}", "{header.X Y}", "{nothing.x}", "{path.x}",
		"{labels.-1}", "{uuid}", "{cookie. }x{"} {
		_, err := (&addresses{plain: true}).parseText("zones[1].key", text)
		want := fmt.Sprintf("zones[1].key: %q: must be ", text)
		if got := fmt.Sprint(err); !strings.HasPrefix(got, want) {
			t.Errorf("parseText(%q): error %s, want %s", text, got, want)
		}
	}
}

// A key is secret if it has a header, a cookie or a query parameter that usually has a secret, or the whole
// query.
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
		if parsed.Secret != want {
			t.Errorf("Parts().Secret of %q = %t, want %t", text, !want, want)
		}
	}
}
