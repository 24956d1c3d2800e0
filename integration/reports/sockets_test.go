package reports

// Sockets on which Caddy listens, and the option with which one of them trusts its clients.
const (
	plainSocket = iota + 1
	trustedSocket
)

// twoClients are 20 requests of two addresses.
var twoClients = []ask{from("203.0.113.1", 10, ""), from("203.0.113.2", 10, "")}

var sockets = []report{
	{"R18", "caddyserver/caddy#7263, #7265", []site{
		{only: "caddy", socket: plainSocket, zones: []string{byAddress}, asks: twoClients,
			want: "200×3 429×17", rows: 1},
		{only: "caddy", socket: trustedSocket, zones: []string{byAddress}, asks: twoClients,
			want: "200×6 429×14", rows: 2},
		{only: "caddy", socket: plainSocket, policy: " ", sql: byAddressAlone, asks: twoClients,
			want: "200×5 429×15"},
		{only: "caddy", socket: trustedSocket, policy: " ", sql: byAddressAlone, asks: twoClients,
			want: "200×10 429×10"},
		{only: "caddy", socket: plainSocket, policy: " ", sql: blockOfAll, asks: twoClients, want: "403×20"},
		{only: "caddy", socket: trustedSocket, policy: " ", sql: blockOfAll, asks: twoClients,
			want: "403×20"},
	}},
}

const (
	byAddressAlone = "SELECT rate_limit_rule('ID', hosts => '{HOST}', count_by => '{ip}', per_hour => 5);"
	blockOfAll     = `SELECT rate_limit_rule('ID', hosts => '{HOST}', action => 'block',
		networks => '{0.0.0.0/0,::/0}');`
)
