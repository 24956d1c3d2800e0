package reports

import "encoding/base64"

// basic is the Basic credentials of ann.
var basic = base64.StdEncoding.EncodeToString([]byte("ann:secret"))

// byKey is a zone that counts three requests an hour by a key.
func byKey(key string) string { return "key " + key + "\nlimit 3 1h" }

// withKey is a policy that finds the API key in a header.
const withKey = "api_key {header.X-Api-Key}"

// orAnonymous is like withKey, and lets requests without a key pass.
const orAnonymous = withKey + "\nwithout_key anonymous"

var credentials = []report{
	{"R01", "hyperdxio/hyperdx#2775; RFC 9110, 11.1", []site{{
		zones: []string{byKey("{header.Authorization}")},
		asks: []ask{
			{n: 4, headers: "Authorization: Bearer K"}, {n: 4, headers: "Authorization: bearer K"},
			{n: 4, headers: "Authorization: BEARER K"}, {n: 4, headers: "Authorization: beARer K"},
			{n: 4, headers: "Authorization: Bearer  K"},
			{n: 4, headers: "Authorization: Basic " + basic},
			{n: 4, headers: "Authorization: basic " + basic},
			{n: 4, headers: "Authorization: BASIC  " + basic},
		}, want: "200×6 429×26", rows: 2,
	}}},
	{"R06", "RFC 6265", []site{{
		zones: []string{byKey("{cookie.session}")},
		asks:  []ask{{n: 20, headers: "Cookie: Session=#; session=S"}}, want: "200×3 429×17", rows: 1,
	}}},
	{"R09", "TencentCloud/CubeSandbox#1379", []site{{
		policy: withKey, zones: []string{byKey("{header.X-Api-Key} | {client_ip}")},
		asks: []ask{{n: 20, headers: "X-Api-Key: invented-#\nCookie: session=S"},
			{headers: "X-Api-Key: KEY\nX-Api-Key: #"}}, want: "401×21", noRows: true,
		upstream: mustNotBeAsked,
	}}},
	{"R02", "RFC 9110, 5.2 and 5.3", []site{{
		zones: []string{byKey("{header.X-Api-Key}")},
		asks: []ask{
			{n: 50, headers: "X-Api-Key: K\nX-Api-Key: #", want: "200×3 429×47"},
			{n: 4, headers: "X-Api-Key: L\nX-Api-Key: L", want: "200×3 429×1"},
		},
	}, {
		policy: " ",
		sql: `SELECT rate_limit_rule('ID', hosts => '{HOST}', count_by => '{header:X-Tenant}',
			per_hour => 2);`,
		asks: []ask{{n: 20, headers: "X-Tenant: acme\nX-Tenant: #"}}, want: "200×2 429×18",
	}}},
	{"R03", "OWASP WSTG, HTTP parameter pollution", []site{{
		zones: []string{byKey("{query.api_key}")},
		asks:  []ask{{n: 50, line: "GET /?api_key=K&api_key=#"}}, want: "200×3 429×47",
	}}},
	{"R04", "near R02", []site{{
		before: "@invalid not header X-Api-Key K\nrespond @invalid 401",
		rule:   "HeaderRegexp(`X-Api-Key`, `^K$`)",
		zones:  []string{byKey("{header.X-Api-Key} | {client_ip}")},
		asks:   []ask{{n: 12, headers: "X-Api-Key: K\nX-Api-Key: #"}}, want: "200×3 429×9",
	}}},
	{"R05", "near R01; Node.js, message.headers", []site{{
		zones: []string{byKey("{header.Authorization}")},
		asks:  []ask{{n: 20, headers: "Authorization: Bearer K\nAuthorization: Bearer #"}},
		want:  "200×3 429×17",
	}}},
	{"R07", "jshttp/cookie#60; pallets/werkzeug#1118", []site{{
		zones: []string{byKey("{cookie.session}")},
		asks: []ask{{n: 20, headers: "Cookie: session=#; session=S"},
			{n: 20, headers: "Cookie: session=S; session=#"}}, want: "200×3 429×37",
	}}},
	{"R08", "near R01", []site{
		{policy: withKey, zones: []string{byKey("{header.X-Api-Key} | {client_ip}")}, asks: spellings,
			want: "200×3 429×21", rows: 1},
		{policy: withKey, sql: `SELECT rate_limit_rule('ID', hosts => '{HOST}',
			count_by => '{header:X-Api-Key}', per_hour => 3);`,
			asks: spellings, want: "200×3 429×21", rows: 1},
	}},
	{"R10", "maximhq/bifrost, documentation of virtual keys", []site{
		{only: "caddy", policy: eitherHeader, upstream: known, asks: withEither,
			after: "reverse_proxy UPSTREAM {\nheader_up X-RateLimit-User {http.pg_ratelimit.user}\n}"},
		{only: "traefik", policy: eitherHeader + "\nforward_headers on", upstream: known, asks: withEither},
	}},
}

// spellings are four requests with each spelling of an API key.
var spellings = []ask{{n: 4, headers: "X-Api-Key: KEY"}, {n: 4, headers: "X-Api-Key: Bearer KEY"},
	{n: 4, headers: "X-Api-Key: bearer KEY"}, {n: 4, headers: "X-Api-Key: BEARER KEY"},
	{n: 4, headers: "X-Api-Key: Bearer  KEY"}, {n: 4, headers: "X-Api-Key: Bearer   KEY"}}

// eitherHeader is a policy that finds the API key in one of two headers.
const eitherHeader = "api_key {header.Authorization} | {header.X-Api-Key}"

// withEither are requests of ann with eitherHeader.
var withEither = []ask{
	{headers: "Authorization: Bearer KEY", want: "200×1", body: "ann|…"},
	{headers: "X-Api-Key: KEY", want: "200×1", body: "ann|…"},
	{headers: "Authorization: Bearer KEY\nX-Api-Key: KEY", want: "200×1", body: "ann|…"},
	{headers: "Authorization: Basic " + basic + "\nX-Api-Key: KEY", want: "200×1", body: "ann|…"},
}
