package integration

import (
	_ "embed"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/reading"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/httplimit"
)

// randomConfig is a random configuration that both proxies can have. Settings have Caddy's names, which
// Traefik accepts.
type randomConfig struct {
	settings settings.Values
	zones    []settings.Values // the setting match is the path of requests
	policy   object            // nil without

	settles bool // Remaining depends on the time at which a request is settled
	inGo    bool // httplimit can have the configuration
}

// keysInGo maps a key of a configuration to the function with which a Go program makes the same keys for
// httplimit.
var keysInGo = map[string]func(r *http.Request) []string{
	"all":                      func(*http.Request) []string { return []string{"all"} },
	"{method}":                 func(r *http.Request) []string { return []string{r.Method} },
	"{remote_ip}":              func(*http.Request) []string { return []string{"127.0.0.1"} },
	"{header.X-User}":          func(r *http.Request) []string { return usersOf(r, "") },
	"{method}-{header.X-User}": func(r *http.Request) []string { return usersOf(r, r.Method+"-") },
}

// usersOf returns the values of the header X-User. A Go program reduces an address to its network itself, and
// counts a preflight without a key by its client.
func usersOf(r *http.Request, before string) []string {
	if len(r.Header["X-User"]) == 0 {
		if before == "" && r.Method == http.MethodOptions {
			return []string{"request:preflight 127.0.0.1"}
		}
		return []string{before}
	}
	var users []string
	for _, user := range r.Header["X-User"] {
		users = append(users, before+reading.Network(user, 32, 64))
	}
	return users
}

// otherKeys are further keys, which only the proxies can have.
var otherKeys = []string{"{client_ip}", "{host}", "{hostport}", "{labels.1}", "{path}", "{dir}", "{file}",
	"{path.1}", "{uri}", "{query}", "{query.q}", "{header.X-Six}",
	"{cookie.sid}", "{header.Authorization}", "{header.X-Api-Key} | {client_ip}", "a-{header.X-Six}-{host}",
	"{scheme}{port}"}

func pick[T any](random *rand.Rand, list ...T) T { return list[random.IntN(len(list))] }

// makeUp returns the configuration n, of random settings. No response depends on the time of a request.
func makeUp(random *rand.Rand, n int) *randomConfig {
	c := &randomConfig{settings: settings.Values{"timeout": "30s", "on_error": "deny",
		"fields": pick(random, "x", "x",
			"ietf", "x ietf")}, inGo: n%2 == 0}
	if c.inGo {
		c.settings["fields"] = "x"
	} else {
		c.settings["route"] = pick(random, "r1", "{header.X-Six}")
		c.settles = n%8 == 1
		if n%4 == 3 {
			c.policy = object{"apiKey": "{header.Authorization}", "user": "{header.X-User}",
				"unknownKey": pick(random, "reject", "anonymous"),
				"withoutKey": pick(random, "refuse", "anonymous", "anonymous")}
		}
	}
	for i := range 1 + random.IntN(3) {
		c.zones = append(c.zones, zoneOf(random, c, fmt.Sprintf("c%d-%d", n, i), i))
		if c.settles {
			break
		}
	}
	return c
}

// madeUpWindows are the windows of the limits of a configuration. A response names the limit that refuses for
// the longest time. No part of a window is as long as a part of another window, because with equal times, the
// moment of the request would decide which limit a response names.
var madeUpWindows = []string{"100003s", "110017s", "120011s"}

// zoneOf returns the limit i of a configuration, with random settings.
func zoneOf(random *rand.Rand, c *randomConfig, prefix string, i int) settings.Values {
	window := " " + madeUpWindows[i]
	z := settings.Values{"algorithm": pick(random, "sliding_window", "fixed_window", "token_bucket",
		"sliding_log", "gcra"), "limit": fmt.Sprint(2+random.IntN(40), window)}
	if !c.inGo {
		prefix += ` "é" 100%` // which RateLimit quotes
	}
	z["prefix"] = prefix + "-" + z["algorithm"]
	var keys []string
	for key := range keysInGo {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	if !c.inGo {
		keys = append(keys, otherKeys...)
	}
	z["key"] = pick(random, keys...)
	some := func(oneIn int, setting string, values ...string) {
		if random.IntN(oneIn) == 0 {
			z[setting] = pick(random, values...)
		}
	}
	if z["algorithm"] == "token_bucket" || z["algorithm"] == "gcra" {
		some(2, "burst", "3", "12")
	}
	some(2, "cost", "2", "{header.X-Cost}")
	some(6, "durable", "on")
	some(5, "hash_key", "on", "off")
	if c.inGo {
		return z
	}
	some(6, "ipv4_prefix", "24")
	some(6, "ipv6_prefix", "48", "128")
	some(6, "mode", "shadow", "off")
	some(4, "without_key", "skip", "refuse")
	some(3, "match", "a/*", "a/1", "b")
	if c.settles {
		delete(z, "burst")
		z["algorithm"], z["prefix"], z["limit"], z["mode"] = "fixed_window", prefix+"-fixed_window",
			"1000000"+window, "enforce"
		z["settle"] = pick(random, "header X-Tokens", "bytes", "json usage.total", "status 404 = 1, else 3")
	}
	return z
}

// traefikName returns the name of a setting in Traefik.
func traefikName(name string) string {
	return regexp.MustCompile("_.").ReplaceAllStringFunc(name, func(letter string) string {
		return strings.ToUpper(letter[1:])
	})
}

// limit returns the configuration of a proxy. path is the prefix of its requests' paths.
func (c *randomConfig) limit(path string) object {
	o := object{"rememberedRefusals": "off", "audit": "all", "history": object{}}
	for name, value := range c.settings {
		o[traefikName(name)] = value
	}
	if c.policy != nil {
		o["policy"] = c.policy
	}
	var zones []object
	for _, z := range c.zones {
		zone := object{}
		for name, value := range z {
			zone[traefikName(name)] = value
		}
		if z["match"] != "" {
			// HEAD is named, because in Traefik GET covers it, and in Caddy's matcher it does not.
			zone["match"] = object{"paths": path + z["match"], "methods": "GET,HEAD,POST"}
		}
		zones = append(zones, zone)
	}
	o["zones"] = zones
	return o
}

// inProgram returns the configuration in a program with httplimit.
func (c *randomConfig) inProgram(t *testing.T, store ratelimit.Store) func(http.Handler) http.Handler {
	t.Helper()
	var read []*settings.ConfiguredLimit
	for _, z := range c.zones {
		l, err := settings.ReadLimit(z)
		if err != nil {
			t.Fatal(err)
		}
		read = append(read, l)
	}
	limited, err := httplimit.New(store, httplimit.Options{Timeout: 30e9, DenyOnError: true,
		Hits: func(r *http.Request) []ratelimit.Hit {
			var hits, further []ratelimit.Hit
			for i, z := range c.zones {
				keys := keysInGo[z["key"]](r)
				hit := ratelimit.Hit{Limit: &read[i].Limit, Key: keys[0], Cost: read[i].Cost,
					Secret: z["hash_key"] == "on" && !strings.HasPrefix(keys[0], "request:")}
				if hit.Cost == 0 {
					hit.Cost = reading.ParseCost(strings.Join(r.Header["X-Cost"], ","))
				}
				hits = append(hits, hit)
				for _, hit.Key = range keys[1:] {
					further = append(further, hit)
				}
			}
			return append(hits, further...)
		}})
	if err != nil {
		t.Fatal(err)
	}
	return limited
}

//go:embed testdata/made_up.sql
var madeUpRules string

// rulesOf returns the rules for the requests of a configuration.
func rulesOf(path string) string {
	name := strings.Trim(path, "/")
	return strings.NewReplacer("NAME", name, "PATH", path).Replace(madeUpRules)
}

// madeUpRequest is a random request.
type madeUpRequest struct {
	method, host, path string // path follows the configuration's path
	headers            []string
	address            string // as a trusted proxy in front forwards it
}

func makeUpRequest(random *rand.Rand, keys []string) *madeUpRequest {
	q := &madeUpRequest{method: pick(random, "GET", "GET", "GET", "POST", "HEAD", "OPTIONS"),
		host: pick(random, "a.test:80", "API.Example.test.:8443", "b.test")}
	q.path = pick(random, "a/1", "a/1", "a/2", "a//1", "a/../b", "%61/1", "b", "b/c", "b;x=1/c", "a/..;/b",
		"B", "a%2F..%2Fb", "2001:db8::1", "limited", "missing") +
		pick(random, "", "", "?q=x;y", "?q=1&q=2", "?page=2", "?q[]=1&q=%31")
	some := func(oneIn int, name string, values ...string) {
		if random.IntN(oneIn) == 0 {
			q.headers = append(q.headers, name, pick(random, values...))
		}
	}
	q.address = pick(random, "198.51.100.7", "203.0.113.5", "::ffff:203.0.113.5", "64:ff9b::203.0.113.5",
		"2001:db8:0:1::5", "2001:DB8:0:1:0:0:0:6", "2001:db8:0:2::5")
	some(2, "X-User", "alice", "bob", "carol", "mallory", "2001:db8::1")
	some(9, "X-User", "second")
	some(3, "X-Cost", "0", "1", "3", "-2", "many", "99999999999999999999")
	some(9, "X-Cost", "2")
	some(3, "X-Six", "2001:DB8::1:0:0:0:1", "2001:db8::2", "192.0.2.7", "::ffff:192.0.2.7", "text")
	some(6, "Authorization", keys...)
	if q.method == "OPTIONS" {
		q.headers = append(q.headers, "Origin", "https://a.test", "Access-Control-Request-Method", "GET")
	}
	some(9, "X-Six", "2001:db8::2", "64:ff9b::c000:207", "third")
	some(9, "Authorization", "Basic YW5uOnB3", "basic YW5uOnB3=", "Bearer unknown")
	some(6, "X-Api-Key", "k1", "127.0.0.1", "")
	some(9, "X-Api-Key", "k2", "k1")
	some(6, "Cookie", "Sid=abc", "a=1; sid=b", "sid=%62; sid=c", `sid="b"; SID=d`, "sid=; sid=b",
		"sid=1; sid=2; sid=3; sid=4; sid=5")
	return q
}

// startUpstream starts the server behind all proxies, and returns its URL. Its responses have costs.
func startUpstream(t *testing.T) *url.URL {
	t.Helper()
	s := harness.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Tokens", "7")
		if strings.HasSuffix(r.URL.Path, "/limited") {
			w.Header().Set("X-RateLimit-Limit", "20")
			w.Header().Set("X-RateLimit-Remaining", "4")
		}
		if strings.HasSuffix(r.URL.Path, "/missing") {
			w.WriteHeader(http.StatusNotFound)
		}
		fmt.Fprintf(w, `{"usage": {"total": 5}, "exempt": %q, "method": %q}`, r.Header["X-Exempt"], r.Method)
	})
	u, err := url.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

var (
	times     = regexp.MustCompile(`;(t=\d+|pk=:[^:]*:)`)
	waitTimes = regexp.MustCompile(`"retryAfter":\d+|in \d+ seconds?`)
)

// normalizeResponse formats a response without times and without headers that a proxy adds to all responses.
func (c *randomConfig) normalizeResponse(response harness.Response) string {
	h := response.Header
	for _, name := range []string{"Date", "Server", "Via", "Content-Length"} {
		h.Del(name)
	}
	for name, values := range h {
		switch name {
		case "X-Ratelimit-Reset", "Retry-After":
			h[name] = []string{"some"}
		case "Ratelimit", "Ratelimit-Policy":
			for i := range values {
				values[i] = times.ReplaceAllString(values[i], "")
			}
		}
	}
	if c.settles {
		h.Del("X-Ratelimit-Remaining")
		h.Del("Ratelimit")
	}
	return fmt.Sprint(response.Status, " ", h, " ", waitTimes.ReplaceAllString(response.Body, "wait"))
}
