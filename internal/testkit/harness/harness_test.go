package harness

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestProcessIsWatchedAndStopped(t *testing.T) {
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	p := Start(t, Program{Path: sh, Env: []string{"WORD=hello"}, Args: []string{"-c", `trap 'echo bye; exit 0' TERM; echo "$WORD"; while :; do sleep 0.01; done`}})
	p.AwaitLog(t, "hello")
	if err := p.Stop(); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(p.Log(), "bye") {
		t.Errorf("it was not asked to end: %q", p.Log())
	}
	select {
	case <-p.Exited():
	default:
		t.Error("it has not ended")
	}
}

func TestProcessThatEndsByItselfIsAnError(t *testing.T) {
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Fatal(err)
	}
	p := Start(t, Program{Path: sh, Args: []string{"-c", "echo why; exit 3"}})
	<-p.Exited()
	if err := p.Stop(); err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "why") {
		t.Errorf("Stop: %v", err)
	}
}

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

func TestLoadEndsWithItsContext(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer server.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
	defer cancel()
	r := Run(ctx, Load{Clients: 4, Every: 10 * time.Millisecond, Request: func(int) *http.Request { return Get(server.URL) }})
	if err := r.Err(); err != nil {
		t.Fatal(err)
	}
	if r.Sent < 1 || r.Sent > 21 {
		t.Errorf("sent %d in 200ms, one every 10ms", r.Sent)
	}
	if r.Sent != r.Status[200] {
		t.Errorf("%v", r)
	}
}
