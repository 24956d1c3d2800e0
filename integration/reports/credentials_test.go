package reports

import "encoding/base64"

// basic is the Basic credentials of ann.
var basic = base64.StdEncoding.EncodeToString([]byte("ann:secret"))

// byKey is a zone that counts three requests an hour by a key.
func byKey(key string) string { return "key " + key + "\nlimit 3 1h" }

// withKey is a policy that finds the API key in a header.
const withKey = "api_key {header.X-Api-Key}"

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
}
