package harness

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
)

func TestLoadCountsEveryRequest(t *testing.T) {
	var connections, seen atomic.Int64
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if seen.Add(1)%4 == 0 {
			w.WriteHeader(http.StatusTooManyRequests)
		}
	}))
	server.Config.ConnState = func(_ net.Conn, s http.ConnState) {
		if s == http.StateNew {
			connections.Add(1)
		}
	}
	server.Start()
	defer server.Close()
	r := Run(context.Background(), Load{Clients: 16, Requests: 800, Request: func(int) *http.Request { return Get(server.URL) }})
	if err := r.Err(); err != nil {
		t.Fatal(err)
	}
	if r.Status[200] != 600 || r.Status[429] != 200 || r.Sent != 800 || seen.Load() != 800 {
		t.Errorf("%v; the server saw %d", r, seen.Load())
	}
	// A transport may dial once more than it needs where a connection comes
	// free meanwhile, but it keeps them.
	if n := connections.Load(); n > 32 {
		t.Errorf("%d connections for 16 clients", n)
	}
}
