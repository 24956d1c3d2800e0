package reports

import (
	"encoding/binary"
	"fmt"
	"net/http"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
)

const (
	grpcWeb = "X-Grpc-Web: 1\nOrigin: https://app.test\nContent-Type: application/grpc-web"
	connect = "Connect-Protocol-Version: 1\nContent-Type: application/"
	refused = `{"code":"resource_exhausted","message":"Too many requests: limit ID, retry in 5184000 s"}`
)

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
			seen: "Grpc-Status: 8\nContent-Type: application/grpc-web+proto"},
	}},
}

// hasForms checks that the refusals of F29 have the forms of their protocols.
func hasForms(v *visit) {
	fields := "8 -1 Too many requests: limit ID, retry in 5184000 s Grpc-Status, Grpc-Message, " +
		"Grpc-Retry-Pushback-Ms"
	end := `{"error":` + refused + "}"
	for i, want := range []string{"grpc-web+proto " + fields, "grpc-web-text " + fields, "json " + refused,
		"json " + refused, "connect+proto \x02LENGTH" + end} {
		h := v.got[i+1].Header
		text := h.Get("Content-Type") + " " + v.got[i+1].Body
		if h.Get("Grpc-Status") != "" {
			text += fmt.Sprint(h.Get("Grpc-Status"), " ", h.Get("Grpc-Retry-Pushback-Ms"), " ",
				h.Get("Grpc-Message"), " ", h.Get("Access-Control-Expose-Headers"))
		}
		want = v.fill("application/" + want)
		length := binary.BigEndian.AppendUint32(nil, uint32(len(v.fill(end))))
		check.Equal(v, fmt.Sprint("refusal ", i+1), text,
			strings.Replace(want, "LENGTH", string(length), 1))
	}
}
