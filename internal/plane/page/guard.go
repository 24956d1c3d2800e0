package page

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/hex"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// tokenHeader is the header of each POST that has the token of the session. Another site can make a browser
// send a POST, and can neither read the token nor send the header.
const tokenHeader = "X-Pg-Ratelimit-Token"

// policyOfContent lets the page load only what it serves itself.
const policyOfContent = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; font-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// setSafeHeaders sets the headers of every answer.
func setSafeHeaders(h http.Header) {
	h.Set("Content-Security-Policy", policyOfContent)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
}

// newToken returns a random text.
func newToken() (string, error) {
	random := make([]byte, 24)
	if _, err := rand.Read(random); err != nil {
		return "", fmt.Errorf("no random bits for the token of the page: %w", err)
	}
	return hex.EncodeToString(random), nil
}

// guard returns why a request is refused, or nil.
func (s *Server) guard(r *http.Request) *failure {
	if !s.knowsHost(r) {
		return &failure{http.StatusMisdirectedRequest, "host", "the page is not for this host name: use the address that it listens on, or name the host in its settings (`hosts`, or --host of the command)"}
	}
	if origin := r.Header.Get("Origin"); origin != "" && !sameHost(origin, r.Host) {
		return &failure{http.StatusForbidden, "origin", "another site has sent this request"}
	}
	if site := r.Header.Get("Sec-Fetch-Site"); site != "" && site != "same-origin" && site != "none" && !isNavigation(r) {
		return &failure{http.StatusForbidden, "origin", "another site has sent this request"}
	}
	switch r.Method {
	case http.MethodGet, http.MethodHead:
		return nil
	case http.MethodPost:
	default:
		return &failure{http.StatusMethodNotAllowed, "", "the method must be GET or POST"}
	}
	if subtle.ConstantTimeCompare([]byte(r.Header.Get(tokenHeader)), []byte(s.token)) != 1 {
		return &failure{http.StatusForbidden, "token", "the token is missing or old: load the page again"}
	}
	return nil
}

// isNavigation reports whether a request is for the page itself, which a link of another site may open.
func isNavigation(r *http.Request) bool {
	return r.Method == http.MethodGet && r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
}

// sameHost reports whether an Origin is of a host, with its port.
func sameHost(origin, host string) bool {
	u, err := url.Parse(origin)
	if err != nil || u.Host == "" {
		return false
	}
	return strings.EqualFold(withoutPort(u.Host, defaultPorts[u.Scheme]), withoutPort(host, defaultPorts[u.Scheme]))
}

var defaultPorts = map[string]string{"http": ":80", "https": ":443"}

func withoutPort(host, port string) string {
	if port == "" {
		return host
	}
	return strings.TrimSuffix(host, port)
}

// knowsHost reports whether the host of a request is one of the page. Any name could be made to lead to this
// machine. An address cannot, nor can a name for which the connection has a certificate.
func (s *Server) knowsHost(r *http.Request) bool {
	name, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		name = r.Host
	}
	name = strings.ToLower(strings.TrimSuffix(strings.Trim(name, "[]"), "."))
	if _, err := netip.ParseAddr(name); err == nil || name == "localhost" || strings.HasSuffix(name, ".localhost") {
		return true
	}
	if r.TLS != nil && r.TLS.ServerName != "" && strings.EqualFold(r.TLS.ServerName, name) {
		return true
	}
	return slices.Contains(s.hosts, name)
}
