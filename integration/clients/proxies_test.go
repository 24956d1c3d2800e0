package clients

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
)

const root = "../.."

// kinds are the refusals that clients meet. The path of a request of a kind begins with the kind. budget is
// used up, and so is paid, whose rule has the status 402. price is a model without a price.
var kinds = []string{"minute", "month", "never", "flight", "down", "banned", "budget", "paid", "price"}

// zones has the limits of the configuration, by kind, with a setting a line. Each client has its own quotas.
var zones = map[string]string{
	"minute": "algorithm sliding_log\nlimit 1 2s",
	"month":  "algorithm sliding_log\nlimit 1 31d",
	"never":  "cost 5\nlimit 2 1m",
	"flight": "algorithm in_flight\nlimit 1",
}

// tokens is a zone that no request uses up. With it, refusals have objects.
const tokens = "unit tokens\nlimit 9000000 1h"

// openDatabase returns a database with the rules of the kinds budget, paid and price, and with bans. The user
// of a request is its client, a dot, and its kind.
func openDatabase(t *testing.T) string {
	t.Helper()
	clients := append(slices.Collect(maps.Keys(most)), "grpc-go", "first")
	return policytest.Open(t, `SELECT rate_limit_rule(kind, paths => ARRAY['/' || kind || '/*'],
			limits => ARRAY['month=' || amount], algorithm => 'fixed_window', status => status)
		FROM (VALUES ('budget', '10 tokens/31d', 429), ('paid', '10 tokens/31d', 402),
			('price', '1 money/31d', 429)) AS r(kind, amount, status);
		INSERT INTO rate_limit_bans (user_id, until) SELECT client || '.banned', now() + interval '1 hour'
			FROM unnest('{`+strings.Join(clients, ",")+`}'::text[]) AS client`)
}

// caddyfile returns the configuration of a Caddy with all kinds.
func caddyfile(dsn, address, backend string) string {
	var b strings.Builder
	for _, kind := range slices.Sorted(maps.Keys(zones)) {
		fmt.Fprintf(&b, "zone %s {\nmatch path /%[1]s/*\nkey {header.X-Client}\n%s\n}\n", kind, zones[kind])
	}
	all := fmt.Sprintf("zone tokens {\nkey {header.X-Client}\n%s\n}\n", tokens)
	down := "zone down {\nlimit 100 1m\n}\n" + all
	return fmt.Sprintf(`{
	admin off
	servers {
		protocols h1 h2c
	}
}
http://%s {
	handle /down/* {
		pg_ratelimit {
			dsn postgres://127.0.0.1:1/nothing
			on_error deny
			timeout 100ms
			%s
		}
	}
	handle {
		pg_ratelimit {
			dsn %s
			on_error deny
			timeout 30s
			policy {
				user {header.X-User}
			}
			%s
		}
	}
	reverse_proxy %s
}
`, address, down, dsn, b.String()+all, strings.TrimPrefix(backend, "http://"))
}

// startCaddy starts a Caddy with all kinds, and returns its URL.
func startCaddy(t *testing.T, dsn, backend string) (*harness.Process, string) {
	t.Helper()
	address := harness.FreeAddress(t)
	return harness.RunCaddy(t, "", harness.Caddy(t, root), address, caddyfile(dsn, address, backend)),
		"http://" + address
}

type object = harness.Object

// startTraefik starts a Traefik with all kinds, and returns its URL.
func startTraefik(t *testing.T, dsn, backend string) (*harness.Process, string) {
	t.Helper()
	address := harness.FreeAddress(t)
	zone := func(prefix, lines string) object {
		z := object{"prefix": prefix, "key": "{header.X-Client}"}
		for line := range strings.Lines(lines) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
			z[name] = value
		}
		return z
	}
	all := []object{zone("tokens", tokens)}
	down := object{"dsn": "postgres://127.0.0.1:1/nothing", "onError": "deny", "timeout": "100ms",
		"zones": []object{{"prefix": "down", "limit": "100 1m"}, all[0]}}
	for _, kind := range slices.Sorted(maps.Keys(zones)) {
		z := zone(kind, zones[kind])
		z["match"] = object{"paths": []string{"/" + kind + "/*"}}
		all = append(all, z)
	}
	main := object{"dsn": dsn, "onError": "deny", "timeout": "30s", "zones": all,
		"policy": object{"user": "{header.X-User}"}}
	router := func(path, middleware string) object {
		return object{"rule": "PathPrefix(`" + path + "`)", "service": "upstream",
			"middlewares": []string{middleware}}
	}
	p := harness.Start(t, harness.TraefikProgram(t, "..", harness.Traefik,
		object{"entryPoints": object{"web": object{"address": address}}},
		object{"http": object{
			"routers": object{"main": router("/", "main"), "down": router("/down", "down")},
			"middlewares": object{"main": object{"plugin": object{"pg-ratelimit": main}},
				"down": object{"plugin": object{"pg-ratelimit": down}}},
			"services": object{"upstream": object{"loadBalancer": object{
				"servers": []object{{"url": backend}}}}},
		}}))
	p.AwaitAddress(t, address)
	return p, "http://" + address
}
