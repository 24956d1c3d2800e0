package reports

import (
	"bufio"
	"fmt"
	"net/http"
)

// trustedSocket is the second of the sockets on which Caddy listens. An option trusts its clients.
const trustedSocket = 2

var sockets = []report{
	{"R37", "traefik/plugin-simplecache#23; traefik/plugin-rewritebody#15", []site{
		{zones: []string{"algorithm in_flight\nlimit 1\nkey all",
			"algorithm fixed_window\nlimit 100000 1h\nsettle bytes\nkey all"},
			upstream: echoOrEvents, check: longConnections},
	}},
}

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
func longConnections(v *visit) {
	upgrade := "Connection: Upgrade\nUpgrade: echo"
	first, second := v.dial(), v.dial()
	first.send("GET /", upgrade)
	upgraded, err := http.ReadResponse(first.in, nil)
	if err != nil || upgraded.Body.Close() != nil || upgraded.StatusCode != http.StatusSwitchingProtocols {
		v.Fatalf("%v, error %v; want 101", upgraded, err)
	}
	if status := second.ask("GET /", upgrade).Status; status != http.StatusTooManyRequests {
		v.Errorf("a second connection gets %d, want 429", status)
	}
	fmt.Fprint(first.conn, "hello\n")
	for range 100 {
		if line, err := first.in.ReadString('\n'); line != "hello\n" {
			v.Fatalf("%q, error %v; want hello", line, err)
		}
	}
	v.Await("the WebSocket to be settled", func() bool { return v.countOf("^"+v.id+"-1$") == 600 })
	events := v.dial()
	v.Await("the slot of the WebSocket", func() bool {
		events.send("GET /", "")
		response, err := http.ReadResponse(events.in, nil)
		if err != nil {
			v.Fatal(err)
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return false
		}
		body := bufio.NewReader(response.Body)
		for _, want := range []string{"data: 1\n", "\n", "data: 2\n"} {
			if line, err := body.ReadString('\n'); line != want {
				v.Errorf("%q, error %v; want %q", line, err, want)
			}
			if want != "\n" {
				continue
			}
			if second.ask("GET /", "").Status != http.StatusTooManyRequests {
				v.Errorf("a second stream passes, want 429")
			}
			goOn <- struct{}{}
		}
		return true
	})
}
