package traefikplugin

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// clientOf returns the address of a client for STRATEGY ~ CONNECTION ~ LINES, with lines of X-Forwarded-For,
// and whether it is assumed. Package pkg/ip of Traefik v3.6 returns the same for that configuration and
// request. If that package returns none, it is the address of the connection.
func clientOf(t *testing.T, text string) string {
	t.Helper()
	parts := strings.Split(text, " ~ ")
	var strategy *IPStrategy
	if parts[0] != "-" {
		strategy = configOf(t, `{"ipStrategy":`+parts[0]+`}`).IPStrategy
	}
	a, err := newAddresses(strategy)
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.RemoteAddr = parts[1]
	if len(parts) > 2 {
		r.Header["X-Forwarded-For"] = parts[2:]
	}
	address, assumed := a.address(r)
	switch {
	case !address.IsValid():
		return "unknown"
	case assumed:
		return address.String() + " assumed"
	}
	return address.String()
}
