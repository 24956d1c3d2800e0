package integration

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// TestInterpretedDoesWhatCompiledDoes sends the same requests to the compiled and to the
// interpreted plugin. It compares the answers, and the keys that are in the tables
// afterwards: Yaegi runs some constructs of Go wrongly without an error.
func TestInterpretedDoesWhatCompiledDoes(t *testing.T) {
	t.Parallel()
	dsn := cluster.Open(t)
	p := loadPlugin(t)
	for i, c := range []struct {
		key, cost, hashKey, algorithm string
		strategy                      object
	}{
		{},
		{key: "{client_ip}", strategy: object{"depth": 2}},
		{key: "{client_ip}", strategy: object{"depth": 1, "ipv6Subnet": 64}},
		{key: "{client_ip}", strategy: object{"excludedIPs": []string{"10.0.0.0/8", "2001:db8:1::/48"}}},
		{key: "{remote_ip}|{host}|{method}|{path}", algorithm: "fixed_window"},
		{key: "{header.X-Tenant}", algorithm: "token_bucket"},
		{key: "{header.X-API-Key}", algorithm: "gcra"},
		{key: "{header.X-API-Key}", hashKey: "false", algorithm: "sliding_log"},
		{key: "{header.X-Tenant}", hashKey: "true"},
		{key: "{cookie.session}"},
		{key: "{query.page}"},
		{key: "{query.api_token}/{query.page}"},
		{key: "{path}", cost: "{header.X-Cost}"},
		{key: "all", cost: "3"},
	} {
		prefix := fmt.Sprintf("same%d", i)
		config := func(name string) object {
			config := object{"dsn": dsn, "prefix": prefix + name, "key": c.key, "cost": c.cost, "hashKey": c.hashKey, "algorithm": c.algorithm, "limit": "9 1h", "timeout": "30s", "onError": "deny"}
			if c.strategy != nil {
				config["ipStrategy"] = c.strategy
			}
			return config
		}
		byGo, byYaegi := compiled(t, ok, config("-go")), p.mustHandler(t, ok, config("-yaegi"))
		for round := range 3 {
			for j, headers := range [][]string{
				nil,
				{"X-Forwarded-For", "192.0.2.1, 2001:db8::5, 10.0.0.1", "X-Tenant", "acme", "X-Cost", "4"},
				{"X-Forwarded-For", "192.0.2.1, 2001:db8::6", "X-Tenant", "acme", "X-Tenant", "evil", "X-Cost", "0"},
				{"X-API-Key", "k1", "Cookie", "a=1; SESSION=s1", "X-Cost", "-1"},
				{"X-API-Key", "sha256:k1", "Cookie", "session=s2", "X-Cost", "99"},
				{"X-Tenant", strings.Repeat("long", 200), "X-API-Key", "a\xffb"},
			} {
				a, b := ask(byGo, headers...), ask(byYaegi, headers...)
				for _, name := range []string{"X-RateLimit-Limit", "X-RateLimit-Remaining", "Content-Type"} {
					if a.Header().Get(name) != b.Header().Get(name) {
						t.Errorf("%s: %s: %q compiled, %q interpreted", c.key, name, a.Header().Get(name), b.Header().Get(name))
					}
				}
				if a.Code != b.Code || a.Code == http.StatusServiceUnavailable || withoutDigits(a.Body.String()) != withoutDigits(b.Body.String()) {
					t.Errorf("%s, round %d, request %d: %d %s compiled, %d %s interpreted", c.key, round, j, a.Code, a.Body, b.Code, b.Body)
				}
			}
		}
		if inGo, inYaegi := keysOf(t, dsn, prefix+"-go"), keysOf(t, dsn, prefix+"-yaegi"); inGo != inYaegi || inGo == "" {
			t.Errorf("%s: keys %s compiled, %s interpreted", c.key, inGo, inYaegi)
		}
	}
}

// keysOf are the keys of a prefix that are in the table.
func keysOf(t testing.TB, dsn, prefix string) string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(t.Context())
	var keys string
	if err := conn.QueryRow(t.Context(), `SELECT coalesce(string_agg(quote_literal(key), ' ' ORDER BY key COLLATE "C"), '') FROM rate_limit_ephemeral WHERE prefix = $1`, prefix).Scan(&keys); err != nil {
		t.Fatal(err)
	}
	return keys
}
