package reports

// posts are n POST requests to each of the paths.
func posts(n int, paths ...string) (asks []ask) {
	for _, path := range paths {
		asks = append(asks, ask{n: n, line: "POST " + path})
	}
	return asks
}

var paths = []report{
	{"R11", "growilabs/growi#11755", []site{
		{policy: " ", sql: `SELECT rate_limit_rule('ID', hosts => '{HOST}', paths => '{/login}',
			methods => '{POST}', count_by => '{ip}', algorithm => 'sliding_log', per_hour => 5);`,
			asks: posts(6, "/login", "/LOGIN", "/lOgin", "/login/", "//login"), want: "200×5 429×25"},
		{only: "traefik", zones: []string{"match path /login\nlimit 5 1h"},
			asks: posts(6, "/login", "/LOGIN", "/lOgin", "/login/", "//login"), want: "200×5 429×25"},
	}},
	{"R12", "cloudflare/cloudflare-docs#33122", []site{{
		policy: " ", sql: `SELECT rate_limit_rule('ID-block', hosts => '{HOST}', action => 'block',
				paths => '{/admin/*}');
			SELECT rate_limit_rule('ID-free', hosts => '{HOST}', action => 'exempt', paths => '{/status}');
			SELECT rate_limit_rule('ID', hosts => '{HOST}', count_by => '{ip}', per_hour => 2);`,
		asks: []ask{{line: "GET /admin", want: "403×1"}, {line: "GET /Admin", want: "403×1"},
			{line: "GET /ADMIN/x", want: "403×1"}, {n: 3, line: "GET /STATUS", want: "200×2 429×1"},
			{n: 3, line: "GET /status", want: "200×3"}},
	}}},
	{"R13", "coder/coder#27273; GHSA-x732-6j76-qmhm", []site{{
		zones: []string{byKey("{path}")},
		asks: []ask{{n: 2, line: "GET /orders/1"}, {n: 2, line: "GET //orders//1"},
			{n: 2, line: "GET /./orders/1"}, {n: 2, line: "GET /x/../orders/1"}},
		want: "200×3 429×5", rows: 1,
	}}},
	{"R14", "fazer-ai/agents#157", []site{
		{only: "caddy", zones: []string{"match path /login /login/\nlimit 5 1h"},
			asks: posts(3, "/login", "/login/", "/Login/"), want: "200×5 429×4"},
		{only: "traefik", zones: []string{"match path /login\nlimit 5 1h"},
			asks: posts(3, "/login", "/login/", "/Login/"), want: "200×5 429×4"},
	}},
	{"R15", "traefik/traefik#11039", []site{{
		zones: []string{"key {path.1}\nlimit 2 1h"},
		asks: []ask{{n: 2, line: "GET /customers/7/a", want: "200×2"},
			{n: 2, line: "GET /customers/7/b", want: "429×2"},
			{n: 2, line: "GET /customers/8/a", want: "200×2"}},
	}}},
	{"R16", "RFC 9110, 9.3.2", []site{{
		policy: " ", sql: `SELECT rate_limit_rule('ID', hosts => '{HOST}', methods => '{GET}',
				paths => '{/orders/*}', per_hour => 2);
			SELECT rate_limit_rule('ID-exempt', hosts => '{HOST}', action => 'exempt', methods => '{GET}',
				paths => '{/free}');
			SELECT rate_limit_rule('ID-free', hosts => '{HOST}', paths => '{/free}', per_hour => 2);`,
		asks: []ask{{n: 2, line: "GET /orders/1", want: "200×2"},
			{n: 5, line: "HEAD /orders/1", want: "429×5"},
			{n: 3, line: "HEAD /free", want: "200×2 429×1"}},
	}}},
}
