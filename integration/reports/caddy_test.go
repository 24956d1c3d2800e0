package reports

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// startCaddy starts a Caddy with all its sites.
func startCaddy(t *testing.T, p proxy, upstream string) *proxy {
	t.Helper()
	p.name, p.trusted, p.open, p.loader = "caddy", harness.FreeAddress(t), harness.FreeAddress(t),
		harness.FreeAddress(t)
	dir := t.TempDir()
	p.sockets = []string{filepath.Join(dir, "plain"), filepath.Join(dir, "trusted")}
	var b strings.Builder
	p.listenForProxies(t)
	more := ""
	for network, address := range p.proxied {
		more += fmt.Sprintf("servers %s {\nprotocols h1\nlistener_wrappers {\nproxy_protocol {\n"+
			"timeout 30s\nallow %s\n}\ntls\n}\n}\n", address, network)
	}
	fmt.Fprintf(&b, caddyHead, "off", p.trusted, p.sockets[trustedSocket-1], more, p.dsn)
	forEachSite(p.name, func(s *site, id string) {
		if s.refused != "" {
			return
		}
		port := p.trusted
		if s.open {
			port = p.open
		}
		bind := "127.0.0.1"
		if s.socket != 0 {
			bind = "unix/" + p.sockets[s.socket-1]
		}
		if s.proxied != "" {
			port = p.proxied[s.proxied]
		}
		port = port[strings.LastIndexByte(port, ':'):]
		fmt.Fprintf(&b, "http://%s%s {\n\tbind %s\n", hostOf(id), port, bind)
		b.WriteString(strings.ReplaceAll(p.fill(s.caddyfile(), id), "UPSTREAM", upstream))
		fmt.Fprintf(&b, "\treverse_proxy %s\n}\n", upstream)
	})
	p.Process = harness.RunCaddy(t, "", harness.Caddy(t, "../.."), p.trusted, b.String())
	harness.RunCaddy(t, "the loader", harness.Caddy(t, "../.."), p.loader, "{\n\tadmin "+p.loader+"\n}\n")
	return &p
}

const caddyHead = `{
	admin %s
	persist_config off
	auto_https off
	log {
		output stderr
		format json
	}
	servers {
		protocols h1
	}
	servers %s {
		protocols h1 h2c
		trusted_proxies static 127.0.0.1/32
		trusted_proxies_strict
	}
	servers unix/%s {
		protocols h1
		trusted_proxies_unix
		trusted_proxies_strict
	}
%s	pg_ratelimit {
		dsn %q
	}
}
`

// caddyfile returns the directives of a site in Caddy.
func (s *site) caddyfile() string {
	if s.directive != "" {
		return s.directive + "\n"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\npg_ratelimit {\n%s\n", s.before, s.settings())
	if s.policy != "" {
		fmt.Fprintf(&b, "policy {\n%s\n}\n", s.policy)
	}
	for i, z := range s.zones {
		prefix, settings := zonePrefix(i, z)
		fmt.Fprintf(&b, "zone %q {\n%s\n}\n", prefix, settings)
	}
	fmt.Fprintf(&b, "}\n%s\n", s.after)
	return b.String()
}

// zonePrefix returns the prefix of a zone and its other settings.
func zonePrefix(i int, settings string) (prefix, others string) {
	prefix = "ID"
	if i > 0 {
		prefix = fmt.Sprintf("ID-%d", i)
	}
	for line := range strings.Lines(settings) {
		if name, value, _ := strings.Cut(strings.TrimSpace(line), " "); name == "prefix" {
			prefix = value
		} else {
			others += line
		}
	}
	return prefix, others
}

// checkRefused checks that a proxy refuses the configuration of a site.
func (p *proxy) checkRefused(t *testing.T, s *site, id string) {
	t.Helper()
	want := p.fill(s.refused, id)
	if p.name == "traefik" {
		status := dial(t, p.trusted, hostOf(id)).ask("GET /", "").Status
		for line := range strings.Lines(p.Log()) {
			if strings.Contains(line, "routerName="+id+"@file") && strings.Contains(unquote(line), want) &&
				status == http.StatusNotFound {
				return
			}
		}
		t.Errorf("%s: status %d, want 404 and in the log %q", id, status, want)
		return
	}
	config := fmt.Sprintf(caddyHead+"http://%s {\n%s\n}\n", p.loader, p.trusted, p.sockets[trustedSocket-1],
		"", p.dsn, hostOf(id), p.fill(s.caddyfile(), id))
	response := harness.LoadCaddyfile(t, p.loader, config)
	if response.Status != http.StatusBadRequest || !strings.Contains(unquote(response.Body), want) {
		t.Errorf("%s: %d %s, want 400 with %q", id, response.Status, response.Body, want)
	}
}

// unquote returns a text without the backslashes before its quotation marks.
func unquote(text string) string {
	return strings.ReplaceAll(strings.ReplaceAll(text, `\\`, `\`), `\"`, `"`)
}
