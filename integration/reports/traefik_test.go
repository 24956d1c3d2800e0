package reports

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// startTraefik starts the Traefik that build builds, with all its sites.
func startTraefik(t *testing.T, p proxy, upstream string,
	build func(ctx context.Context, integration string) (string, error)) *proxy {
	t.Helper()
	p.name, p.trusted, p.open = "traefik", harness.FreeAddress(t), harness.FreeAddress(t)
	trusts := object{"trustedIPs": []string{"127.0.0.1/32"}}
	points := object{"trusted": object{"address": p.trusted, "forwardedHeaders": trusts},
		"open": object{"address": p.open}}
	p.listenForProxies(t)
	for network, address := range p.proxied {
		points[pointOf(network)] = object{"address": address,
			"proxyProtocol": object{"trustedIPs": []string{network}}}
	}
	routers, middlewares := object{}, object{}
	forEachSite(p.name, func(s *site, id string) {
		point := "trusted"
		if s.open {
			point = "open"
		}
		if s.proxied != "" {
			point = pointOf(s.proxied)
		}
		var chain []string
		for _, name := range slices.Sorted(maps.Keys(s.middlewares)) {
			middlewares[id+"-"+name] = s.middlewares[name]
			chain = append(chain, id+"-"+name)
		}
		middlewares[id] = object{"plugin": object{"pg-ratelimit": s.plugin()}}
		rule := "Host(`" + hostOf(id) + "`)"
		if s.rule != "" {
			rule += " && " + s.rule
		}
		chain = append(chain, id)
		for name, m := range s.inner {
			middlewares[id+"-"+name] = m
			chain = append(chain, id+"-"+name)
		}
		routers[id] = object{"rule": rule, "service": cmp.Or(s.service, "upstream"),
			"entryPoints": []string{point}, "middlewares": chain}
		p.fillAll(middlewares, id)
	})
	routers["ready"] = object{"rule": "Host(`ready.test`)", "service": "upstream"}
	p.Process = harness.Start(t, harness.TraefikProgram(t, "..", build, object{"entryPoints": points},
		object{"http": object{"routers": routers, "middlewares": middlewares,
			"services": services("http://" + upstream)}}, "DATABASE_URL="+p.dsn))
	p.AwaitAddress(t, p.trusted)
	p.Await(t, "its configuration", func() bool {
		return dial(t, p.trusted, "ready.test").ask("GET /", "").Status == http.StatusOK
	})
	return &p
}

// services returns the services of Traefik. Those that are dead refuse connections.
func services(upstream string) object {
	balancer := func(urls ...string) object {
		servers := []object{}
		for _, url := range urls {
			servers = append(servers, object{"url": url})
		}
		return object{"loadBalancer": object{"servers": servers}}
	}
	const dead = "http://127.0.0.1:1"
	return object{"upstream": balancer(upstream), "half-dead": balancer(dead, upstream),
		"dead": balancer(dead), "mirrored": object{"mirroring": object{"service": "upstream",
			"mirrors": []object{{"name": "upstream", "percent": 100}}}}}
}

// plugin returns the settings of a site in Traefik.
func (s *site) plugin() object {
	settings := traefikSettings(s.settings())
	if !s.open {
		settings["ipStrategy"] = object{"depth": 1}
	}
	if s.policy != "" {
		settings["policy"] = traefikSettings(s.policy)
	}
	var zones []object
	for i, z := range s.zones {
		prefix, others := zonePrefix(i, z)
		zone := traefikSettings(others)
		zone["prefix"] = prefix
		zones = append(zones, zone)
	}
	if zones != nil {
		settings["zones"] = zones
	}
	return settings
}

// underscored is a letter in the name of a setting that Traefik has in upper case.
var underscored = regexp.MustCompile("_[a-z]")

// traefikSettings converts settings of a Caddyfile.
func traefikSettings(lines string) object {
	settings := object{}
	for line := range strings.Lines(lines) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		name = underscored.ReplaceAllStringFunc(name, func(s string) string { return strings.ToUpper(s[1:]) })
		if name == "match" {
			kind, values, _ := strings.Cut(value, " ")
			settings[name] = object{kind + "s": strings.Fields(values)}
		} else if name != "" {
			settings[name] = value
		}
	}
	return settings
}

// fillAll replaces the names in all texts of a value.
func (p *proxy) fillAll(value any, id string) any {
	switch value := value.(type) {
	case object:
		for name, part := range value {
			value[name] = p.fillAll(part, id)
		}
	case []object:
		for i := range value {
			p.fillAll(value[i], id)
		}
	case string:
		return p.fill(value, id)
	}
	return value
}

// client sends requests as they are written, over one connection.
type client struct {
	testing.TB
	conn net.Conn
	in   *bufio.Reader
	host string
}

// dial connects to a proxy.
func dial(t testing.TB, address, host string) *client {
	t.Helper()
	network := "tcp"
	if filepath.IsAbs(address) {
		network = "unix"
	}
	conn, err := net.DialTimeout(network, address, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &client{t, conn, bufio.NewReader(conn), host}
}

// earlyLink is the header with the Link of status 103 in a response of ask.
const earlyLink = "Test-Early-Link"

// send sends a request with a line such as GET / or POST / BODY, and returns its method.
func (c *client) send(line, headers string) string {
	c.Helper()
	method, path, _ := strings.Cut(line, " ")
	path, body, _ := strings.Cut(path, " ")
	text := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: %s\r\n", method, path, c.host)
	if !strings.Contains(headers, "X-Forwarded-For") {
		text += "X-Forwarded-For: 203.0.113.9\r\n"
	}
	if method == http.MethodPost {
		text += fmt.Sprintf("Content-Length: %d\r\n", len(body))
	}
	for header := range strings.Lines(headers) {
		text += strings.Trim(header, "\t\n") + "\r\n"
	}
	if _, err := io.WriteString(c.conn, text+"\r\n"+body); err != nil {
		c.Fatal(err)
	}
	_ = c.conn.SetReadDeadline(time.Now().Add(time.Minute))
	return method
}

// ask sends a request, and reads the response.
func (c *client) ask(line, headers string) *harness.Response {
	c.Helper()
	method := c.send(line, headers)
	response, err := http.ReadResponse(c.in, &http.Request{Method: method})
	link := ""
	if err == nil && response.StatusCode == http.StatusEarlyHints {
		link = response.Header.Get("Link")
		response, err = http.ReadResponse(c.in, &http.Request{Method: method})
	}
	if err != nil {
		c.Fatal(err)
	}
	if link != "" {
		response.Header.Set(earlyLink, link)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		c.Fatal(err)
	}
	return &harness.Response{Status: response.StatusCode, Header: response.Header, Body: string(body)}
}

// askOften sends a request n times, and returns the statuses.
func (c *client) askOften(line, headers string, n int) string {
	counts := map[int]int{}
	for range n {
		counts[c.ask(line, headers).Status]++
	}
	return countText(counts)
}
