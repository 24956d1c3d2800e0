package reports

import (
	"bufio"
	"fmt"
	"net/http"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

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
	{"R37", "traefik/plugin-simplecache#23; traefik/plugin-rewritebody#15", []site{
		{zones: []string{"algorithm in_flight\nlimit 1\nkey all",
			"algorithm fixed_window\nlimit 100000 1h\nsettle bytes\nkey all"},
			upstream: echoOrEvents, check: longConnections},
	}},
}

const (
	byAddressAlone = "SELECT rate_limit_rule('ID', hosts => '{HOST}', count_by => '{ip}', per_hour => 5);"
	blockOfAll     = `SELECT rate_limit_rule('ID', hosts => '{HOST}', action => 'block',
		networks => '{0.0.0.0/0,::/0}');`
)

// goOn lets an event stream of echoOrEvents continue.
var goOn = make(chan struct{}, 1)

// echoOrEvents is an upstream that repeats the first line of a WebSocket, or sends two events, the second
// after goOn.
func echoOrEvents(w http.ResponseWriter, r *http.Request) {
	out := http.NewResponseController(w)
	if r.Header.Get("Upgrade") == "" {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: 1\n\n")
		_ = out.Flush()
		<-goOn
		fmt.Fprint(w, "data: 2\n\n")
		return
	}
	conn, buffered, err := out.Hijack()
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	line, _ := buffered.ReadString('\n')
	for range 100 {
		fmt.Fprint(conn, line)
	}
}

// longConnections checks a WebSocket and an event stream: each holds the only slot until it ends, its parts
// arrive one by one, and what was sent is settled.
func longConnections(t *testing.T, p *proxy, id string, _ []*harness.Response) {
	upgrade := "Connection: Upgrade\nUpgrade: echo"
	first, second := dial(t, p.trusted, hostOf(id)), dial(t, p.trusted, hostOf(id))
	first.send(t, "GET /", upgrade)
	upgraded, err := http.ReadResponse(first.in, nil)
	if err != nil || upgraded.Body.Close() != nil || upgraded.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("%s: %v, error %v; want 101", id, upgraded, err)
	}
	if status := second.ask(t, "GET /", upgrade).Status; status != http.StatusTooManyRequests {
		t.Errorf("%s: a second connection gets %d, want 429", id, status)
	}
	fmt.Fprint(first.conn, "hello\n")
	for range 100 {
		if line, err := first.in.ReadString('\n'); line != "hello\n" {
			t.Fatalf("%s: %q, error %v; want hello", id, line, err)
		}
	}
	p.Await(t, "the WebSocket to be settled", func() bool { return countOf(t, p, "^"+id+"-1$") == 600 })
	events := dial(t, p.trusted, hostOf(id))
	p.Await(t, "the slot of the WebSocket", func() bool {
		events.send(t, "GET /", "")
		response, err := http.ReadResponse(events.in, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return false
		}
		body := bufio.NewReader(response.Body)
		for _, want := range []string{"data: 1\n", "\n", "data: 2\n"} {
			if line, err := body.ReadString('\n'); line != want {
				t.Errorf("%s: %q, error %v; want %q", id, line, err, want)
			}
			if want != "\n" {
				continue
			}
			if second.ask(t, "GET /", "").Status != http.StatusTooManyRequests {
				t.Errorf("%s: a second stream passes, want 429", id)
			}
			goOn <- struct{}{}
		}
		return true
	})
}
