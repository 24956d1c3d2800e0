package reports

import (
	"fmt"
	"net/http"
	"strings"
)

// known is an upstream that answers with what the policy knows.
func known(w http.ResponseWriter, r *http.Request) {
	var values []string
	for _, name := range []string{"User", "Tier", "Key-Id", "Rule"} {
		values = append(values, strings.Join(r.Header["X-Ratelimit-"+name], " and "))
	}
	fmt.Fprint(w, strings.Join(values, "|"))
}

// inFront is a middleware of the plugin in front of a site's.
func inFront(settings object) object {
	settings["timeout"], settings["onError"] = "30s", "deny"
	return object{"outer": object{"plugin": object{"pg-ratelimit": settings}}}
}

// forged is a request of ann that claims to be another user.
var forged = []ask{{headers: "X-Api-Key: KEY\nX-RateLimit-User: mallory\nX-RateLimit-Tier: gold",
	want: "200×1", body: "ann|free|1|all"}}

// ofEverybody is a rule that matches all requests of a site.
const ofEverybody = "SELECT rate_limit_rule('all', tiers => '{free}', per_hour => 1000000);"

var chains = []report{
	{"R66", "traefik/traefik#12195, #6594", []site{
		{only: "traefik", policy: withKey, sql: ofEverybody, upstream: known, asks: forged,
			middlewares: inFront(object{"policy": object{"apiKey": "{header.X-Api-Key}",
				"forwardHeaders": true}})},
		{only: "traefik", policy: withKey + "\nforward_headers on", upstream: known, asks: forged,
			middlewares: inFront(object{"policy": object{"apiKey": "{header.X-Api-Key}"}})},
		{only: "traefik", zones: []string{"limit 10 1h"}, asks: []ask{{n: 10}}, want: "200×5 429×5",
			middlewares: inFront(object{"prefix": "ID", "limit": "10 1h", "ipStrategy": object{"depth": 1}}),
			seen:        "X-RateLimit-Limit: 10\nX-RateLimit-Remaining: 0\nX-RateLimit-Reset: +"},
	}},
	{"R67", "traefik/ingress-nginx-migration#37; traefik/traefik#12899", []site{
		{zones: []string{"algorithm gcra\nlimit 5 1s\nburst 26"}, check: inABurst},
	}},
}
