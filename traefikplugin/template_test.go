package traefikplugin

import (
	"testing"
)

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
