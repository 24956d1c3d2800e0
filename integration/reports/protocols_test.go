package reports

import (
	"encoding/binary"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

const (
	grpcWeb = "X-Grpc-Web: 1\nOrigin: https://app.test\nContent-Type: application/grpc-web"
	connect = "Connect-Protocol-Version: 1\nContent-Type: application/"
	refused = `{"code":"resource_exhausted","message":"Too many requests: limit ID, retry in 5184000 s"}`
)

const (
	socket = "Authorization: Bearer KEY\nConnection: Upgrade\nUpgrade: websocket"
	h2c    = "Authorization: Bearer KEY\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\nConnection: Upgrade, " +
		"HTTP2-Settings, keep-alive\nUpgrade: h2c"
	byBearer = "api_key {header.Authorization}"
	// forPost is a plan for POST alone.
	forPost = `SELECT rate_limit_rule('ID', hosts => '{HOST}', tiers => '{free}', methods => '{POST}',
		limits => '{rpm=60/1m,tpm=1 tokens/1h}');`
	forMoney = `SELECT rate_limit_price('ID', 2.50, 10);
		SELECT rate_limit_rule('ID', hosts => '{HOST}', methods => '{POST}',
		limits => '{month=50 money/1mo calendar}');`
	zoneForPost = "match method POST\nunit tokens\nlimit 1 1h\nalgorithm fixed_window\nkey all"
)

// upgraded are upgrades beside a budget, before and after it is used up.
var upgraded = []ask{{line: "GET /v1/responses", headers: socket, want: "426×1"},
	{line: "POST /v1/responses", headers: "Authorization: Bearer KEY", want: "200×1"},
	{line: "POST /v1/responses", headers: "Authorization: Bearer KEY", want: "429×1"},
	{n: 3, line: "GET /v1/realtime", headers: socket + "\nOpenAI-Beta: realtime=v1", want: "426×3"},
	{line: "GET /v1/responses", headers: socket + ", h2c", want: "426×1"},
	{line: "GET /v1/models", headers: "Authorization: Bearer KEY", want: "200×1"},
	{line: "GET /v1/responses", headers: "X-HTTP-Method-Override: POST\nAuthorization: Bearer KEY",
		want: "200×1", body: "GET map[]"},
	{line: "GET /v1/models", headers: h2c, want: "200×1", body: "GET map[]"}}

// answersUpgrades is an upstream that accepts an upgrade, and else says what a request asks for.
func answersUpgrades(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Upgrade") == "websocket" {
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "websocket")
		w.WriteHeader(http.StatusSwitchingProtocols)
		return
	}
	offers := http.Header{}
	for _, name := range []string{"Upgrade", "Http2-Settings", "Connection", "X-Http-Method-Override"} {
		if value := r.Header.Get(name); value != "" && value != "keep-alive" {
			offers.Set(name, value)
		}
	}
	fmt.Fprint(w, r.Method, " ", offers)
}

var protocols = []report{
	{"F01", "openai/codex#43353; Codex-Manager#92", []site{
		{policy: byBearer, sql: forPost, upstream: answersUpgrades, asks: upgraded},
		{zones: []string{zoneForPost}, upstream: answersUpgrades, asks: upgraded},
		{only: "caddy", zones: []string{strings.Replace(zoneForPost, "method POST",
			"expression \"{http.request.method} == 'POST'\"", 1)}, upstream: answersUpgrades, asks: upgraded},
		{policy: byBearer, sql: forMoney, upstream: answersUpgrades, asks: upgraded[:1]},
		{policy: byBearer, sql: forPost + `SELECT rate_limit_rule('ID-sockets', hosts => '{HOST}',
			action => 'exempt', paths => '{/live}');`, upstream: answersUpgrades, asks: []ask{
			{line: "GET /live/x", headers: socket, want: "426×1"},
			{line: "GET /live", headers: socket, want: "101×1"}}},
		{policy: byBearer, sql: forPost, asks: []ask{
			{line: "GET /", headers: strings.Replace(socket, "KEY", "rl_unknown", 1), want: "401×1",
				body: `{"type":"error","error":{"message":"Unknown API key",…`},
			{line: "PUT /", headers: "Authorization: Bearer KEY", want: "200×1"},
			{line: "QUERY /", headers: "Authorization: Bearer KEY", want: "200×1"},
			{line: "GET /", headers: "Authorization: Bearer KEY\nContent-Length: 0", want: "200×1"}},
			noRows: true},
	}},
	{"F17", "openai/codex#43353; NVIDIA/NeMo-Relay#994", []site{
		{policy: byBearer, sql: forPost, upstream: mustNotBeAsked, asks: []ask{{line: "GET /v1/responses",
			headers: socket + "\nOpenAI-Beta: responses_websockets=2026-02-06", want: "426×1",
			body: `{"type":"error","error":{"message":"No upgrade possible",…`}},
			check: seen("Upgrade: HTTP/1.1\nConnection: Upgrade\nX-Should-Retry: false")},
	}},
	{"F29", "connectrpc/connect-es#1226; line/armeria#5928", []site{
		{zones: []string{"algorithm sliding_log\nlimit 1 60d\nkey all"}, asks: []ask{
			{line: "POST /", headers: grpcWeb + "+proto", want: "200×1", body: "ok"},
			{line: "POST /", headers: grpcWeb + "+proto", want: "200×1"},
			{line: "POST /", headers: grpcWeb + "-text", want: "200×1"},
			{line: "POST /", headers: connect + "json", want: "429×1"},
			{line: "GET /?connect=v1&encoding=json&message=%7B%7D", want: "429×1"},
			{line: "POST /", headers: connect + "connect+proto", want: "200×1"},
			{line: "POST /", headers: "Content-Type: application/json", want: "429×1",
				body: `{"error":"Too many requests","retryAfter":5184000}`},
		}, check: hasForms},
		{only: "traefik",
			middlewares: object{"web": object{"grpcWeb": object{"allowOrigins": []string{"*"}}}},
			zones:       []string{"algorithm sliding_log\nlimit 1 60d\nkey all"},
			asks: []ask{{}, {line: "POST /",
				headers: grpcWeb + "+proto", want: "200×1"}},
			check: seen("Grpc-Status: 8\nContent-Type: application/grpc-web+proto")},
	}},
}

// hasForms checks that the refusals of F29 have the forms of their protocols.
func hasForms(t *testing.T, p *proxy, id string, got []*harness.Response) {
	fields := "8 -1 Too many requests: limit ID, retry in 5184000 s Grpc-Status, Grpc-Message, " +
		"Grpc-Retry-Pushback-Ms"
	end := `{"error":` + refused + "}"
	for i, want := range []string{"grpc-web+proto " + fields, "grpc-web-text " + fields, "json " + refused,
		"json " + refused, "connect+proto \x02LENGTH" + end} {
		h := got[i+1].Header
		text := h.Get("Content-Type") + " " + got[i+1].Body
		if h.Get("Grpc-Status") != "" {
			text += fmt.Sprint(h.Get("Grpc-Status"), " ", h.Get("Grpc-Retry-Pushback-Ms"), " ",
				h.Get("Grpc-Message"), " ", h.Get("Access-Control-Expose-Headers"))
		}
		want = p.fill("application/"+want, id)
		length := binary.BigEndian.AppendUint32(nil, uint32(len(p.fill(end, id))))
		check.Equal(t, fmt.Sprint(id, ", refusal ", i+1), text,
			strings.Replace(want, "LENGTH", string(length), 1))
	}
}
