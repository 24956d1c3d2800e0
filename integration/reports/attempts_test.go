package reports

import (
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// whole is an upstream of a language model, which answers a body that it gets as a whole. It has a page.
func whole(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		fmt.Fprint(w, "ok")
		return
	}
	body, err := io.ReadAll(r.Body)
	if err != nil || !strings.HasPrefix(string(body), `{"model":`) || !strings.HasSuffix(string(body), "}") {
		w.WriteHeader(http.StatusTeapot)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	fmt.Fprintf(w, usage+"%2000s", "")
}

const usage = `{"usage":{"prompt_tokens":100,"completion_tokens":10}}`

// prompts are n prompts of ann with a size in bytes.
func prompts(n, size int) ask {
	const start = `{"model":"r-model","max_tokens":100,"x":"`
	return ask{n: n, line: "POST /v1/chat/completions " + start + strings.Repeat("x", size-len(start)-2) +
		`"}`,
		headers: "X-Api-Key: KEY", body: usage + "…"}
}

// withBody returns an ask with another body of the response.
func withBody(a ask, body string) ask {
	a.body = body
	return a
}

// neighbours returns the sites with each middleware of Traefik that replaces, repeats, or holds responses, in
// front of the plugin and behind it, under a limit of tokens, and under one of requests.
func neighbours() (sites []site) {
	prompt, page := prompts(20, 5000), withBody(prompts(2, 5000), "ok")
	encoded := withBody(prompts(2, 5000), "")
	encoded.headers += "\nAccept-Encoding: br"
	for _, c := range []struct {
		middleware object
		service    string
		ask        ask
		want       string
		charges    int
	}{
		{object{"errors": object{"status": []string{"500-599"}, "service": "upstream", "query": "/"}}, "dead",
			page, "502×2", 0},
		{object{"buffering": object{"retryExpression": "IsNetworkError() && Attempts() < 3"}}, "half-dead",
			prompt, "200×20", 20},
		{object{"circuitBreaker": object{"expression": "LatencyAtQuantileMS(50.0) > 60000"}}, "half-dead",
			withBody(prompt, ""), "200×10 502×10", 10},
		{object{"compress": object{"defaultEncoding": "gzip"}}, "", encoded, "200×2", 2},
		{object{"compress": object{"defaultEncoding": "gzip"}}, "", withBody(prompts(2, 5000), ""), "200×2",
			2},
		{object{"retry": object{"attempts": 2}}, "mirrored", prompt, "200×20", 20},
	} {
		for _, zones := range [][]string{inTokens, {"key all\nlimit 1000 1h"}} {
			outer := site{only: "traefik", zones: zones, service: c.service, upstream: whole,
				asks: []ask{c.ask}, want: c.want}
			if strings.Contains(zones[0], "tokens") {
				outer.check = settledOnce(c.charges, 110)
			}
			inner := outer
			outer.middlewares = object{"neighbour": c.middleware}
			inner.inner = object{"neighbour": c.middleware}
			sites = append(sites, outer, inner)
		}
	}
	return sites
}

// inMoney is a rule of ann in money, for which a prompt costs 0.00035.
const inMoney = `SELECT rate_limit_price('r-model', 2.5, 10); SELECT rate_limit_rule('ID', tiers => '{free}',
	hosts => '{HOST}', methods => '{POST}', limits => '{month=50 money/1mo calendar}');`

// inTokens is a zone in tokens.
var inTokens = []string{"key all\nalgorithm fixed_window\nlimit 100000000 1h\nunit tokens"}

// second is another middleware of the plugin, with a limit of tokens or of requests in flight.
func second(limit string) object {
	settings := traefikSettings("key all\nprefix second-ID\ntimeout 30s\non_error deny\n" + limit)
	return object{"plugin": object{"pg-ratelimit": settings}}
}

// behindTwo returns the sites with two middlewares of the plugin, and Traefik's retry around them, between
// them, and behind them.
func behindTwo() (sites []site) {
	for _, limit := range []string{strings.TrimPrefix(inTokens[0], "key all\n"),
		"algorithm in_flight\nlimit 1"} {
		s := site{only: "traefik", zones: inTokens, service: "half-dead", upstream: whole,
			asks: []ask{prompts(20, 5000)}, want: "200×20", check: settledOnce(20, 110)}
		around, between, behind := s, s, s
		around.middlewares = object{"1": again["again"], "2": second(limit)}
		between.middlewares = object{"1": second(limit), "2": again["again"]}
		behind.middlewares = object{"1": second(limit)}
		behind.inner = again
		sites = append(sites, around, between, behind)
	}
	return sites
}

// again tries a request again if an upstream is dead.
var again = object{"again": object{"retry": object{"attempts": 3, "initialInterval": "10ms"}}}

// secondUpstream and errorUpstream ask the upstream after one that refuses connections.
const (
	secondUpstream = "reverse_proxy 127.0.0.1:1 UPSTREAM {\nlb_policy round_robin\nlb_retries 2\n}"
	errorUpstream  = "reverse_proxy 127.0.0.1:1\nhandle_errors {\n%s\nreverse_proxy UPSTREAM\n}"
)

var attempts = []report{
	{"F20", "traefik/traefik#1008; moby/moby#39331", []site{
		{only: "traefik", policy: withKey, sql: inMoney, middlewares: again, service: "half-dead",
			upstream: whole,
			asks:     []ask{prompts(20, 5000)}, want: "200×20", check: settledOnce(20, 350)},
		{only: "traefik", zones: inTokens, middlewares: again, service: "half-dead", upstream: whole,
			asks: []ask{prompts(20, 5000)}, want: "200×20", check: settledOnce(20, 110)},
		// One prompt fits at a time, and one request.
		{only: "traefik", zones: []string{strings.Replace(inTokens[0], "100000000", "1400", 1)},
			middlewares: again, service: "half-dead", upstream: whole, asks: []ask{prompts(1, 5000)},
			want: "200×1"},
		{only: "traefik", zones: []string{"key all\nalgorithm in_flight\nlimit 1"}, middlewares: again,
			service: "half-dead", asks: []ask{{n: 20, body: "ok"}}, want: "200×20"},
		// A limit of requests counts each attempt behind it.
		{only: "traefik", zones: []string{"limit 50 1h"}, middlewares: again, service: "half-dead",
			asks: []ask{{n: 20, body: "ok"}}, want: "200×20", check: counted(39, 40)},
		{only: "traefik", zones: []string{"limit 50 1h"}, inner: again, service: "half-dead",
			asks: []ask{{n: 20, body: "ok"}}, want: "200×20", check: counted(20, 20)},
		{only: "traefik", zones: []string{"limit 50 1h"}, middlewares: again, service: "dead",
			asks: []ask{{n: 3, body: "Bad Gateway"}}, want: "502×3"},
		{only: "traefik", zones: inTokens, middlewares: again, service: "half-dead", upstream: whole,
			inner: object{"buffer": object{"buffering": object{"maxRequestBodyBytes": 1 << 20}}},
			asks:  []ask{withBody(prompts(20, 5000), "")},
			want:  "200×10 502×10", check: says("An earlier attempt has read the body")},
	}},
	{"F20N", "traefik/traefik#1008", neighbours()},
	{"F20T", "traefik/traefik#1008", behindTwo()},
	{"F38", "caddyserver/caddy#7546, #7713", []site{
		{only: "caddy", zones: inTokens, after: secondUpstream, upstream: whole,
			asks: []ask{prompts(10, 5000), prompts(10, 50000), prompts(3, 5<<20)}, want: "200×23",
			check: settledOnce(23, 110)},
		{only: "caddy", policy: withKey, sql: inMoney, after: secondUpstream, upstream: whole,
			asks: []ask{prompts(10, 50000), prompts(3, 5<<20)}, want: "200×13", check: settledOnce(13, 350)},
		{only: "caddy", zones: inTokens, after: fmt.Sprintf(errorUpstream, ""), upstream: whole,
			asks: []ask{prompts(2, 5000)}, want: "200×2", check: settledOnce(2, 1350)},
		{only: "caddy", zones: inTokens, after: fmt.Sprintf(errorUpstream, "pg_ratelimit ID {\n"+
			inTokens[0]+"\n}"), upstream: whole,
			asks: []ask{prompts(10, 5000), prompts(10, 50000), prompts(3, 5<<20)}, want: "200×23",
			check: settledOnce(23, 110)},
	}},
}

// settledOnce returns a check that a site has charged a number of requests, each once.
func settledOnce(n, units int) func(*visit) {
	return func(v *visit) {
		v.Await(fmt.Sprintf("%d charges of %d", n, units), func() bool {
			got := cluster.Query[string](v, v.dsn, `SELECT concat(count(*), ' ', count(DISTINCT l.id), ' ',
				coalesce(sum((c->>'units')::bigint), 0)) FROM rate_limit_ledger l,
					jsonb_array_elements(l.charges) c
				WHERE c->>'prefix' ~ $1`, "^(rule/)?"+v.id+"($|/)")
			return got == fmt.Sprint(n, " ", n, " ", n*units)
		})
	}
}

// counted returns a check that a site has counted a number of requests.
func counted(least, most int) func(*visit) {
	return func(v *visit) {
		if got := v.countOf("^" + v.id + "$"); got < least || got > most {
			v.Errorf("%d requests are counted, want %d to %d", got, least, most)
		}
	}
}

// says returns a check that each refusal has a text.
func says(text string) func(*visit) {
	return func(v *visit) {
		for _, r := range v.got {
			if r.Status != http.StatusOK && !strings.Contains(r.Body, text) {
				v.Errorf("the body is %q, want %q in it", r.Body, text)
			}
		}
	}
}
