package integration

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

const (
	faultTimeout = 250 * time.Millisecond // for a decision, the default
	faultMargin  = 50 * time.Millisecond  // beyond it, for everything else
)

// faultRoutes are a route that passes requests without a decision, one that
// refuses them, and one without the plugin, which shows how late the machine is.
func faultRoutes(backend, dsn string) []route {
	limit := func(prefix, onError string) object {
		return object{"dsn": dsn, "prefix": prefix, "limit": "1000000 1h", "onError": onError}
	}
	return []route{{"/allow", backend, limit("a", "allow")}, {"/deny", backend, limit("d", "deny")}, {"/plain", backend, nil}}
}

// faultPaths are the routes in the order in which faultLoad asks them.
var faultPaths = []string{"/allow", "/deny", "/plain"}

// faultLoad sends a request every few milliseconds, to the routes in turn, until
// stop is called, and returns what came of them.
func faultLoad(tr *traefik) (stop func() *harness.Result) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan *harness.Result, 1)
	go func() {
		done <- harness.Run(ctx, harness.Load{Clients: 64, Every: 4 * time.Millisecond, Request: func(i int) *http.Request {
			return harness.Get(tr.url + faultPaths[i%len(faultPaths)])
		}})
	}()
	return func() *harness.Result {
		cancel()
		return <-done
	}
}

// checkFaults expects that every request was answered in time: by onError if it began
// during the outage.
func checkFaults(t *testing.T, r *harness.Result, down, up time.Time) {
	t.Helper()
	if err := r.Err(); err != nil {
		t.Error(err)
	}
	// On a busy machine, requests without the plugin take long, too. A request with it may
	// take that much longer twice: before it waits for its timeout, and after.
	late := time.Duration(0)
	for i, reply := range r.Replies {
		if faultPaths[i%len(faultPaths)] == "/plain" && reply.Took > late {
			late = reply.Took
		}
	}
	byOnError := 0
	for i, reply := range r.Replies {
		path := faultPaths[i%len(faultPaths)]
		switch {
		case !reply.Started || reply.Err != nil:
			continue
		case reply.Took > faultTimeout+faultMargin+2*late:
			t.Errorf("%s, %v after the outage began, took %v; without the plugin %v at most", path, reply.Began.Sub(down), reply.Took, late)
		case reply.Status == http.StatusServiceUnavailable && path == "/deny":
			byOnError++
		case reply.Status != http.StatusOK:
			t.Errorf("%s was answered %d", path, reply.Status)
		case path == "/deny" && reply.Began.After(down) && reply.Began.Add(reply.Took).Before(up):
			t.Errorf("%s passed %v into the outage", path, reply.Began.Sub(down))
		}
	}
	if byOnError == 0 {
		t.Error("no request was answered by onError: there was no outage")
	}
	t.Logf("%v; %d denied by onError; without the plugin %v at most", r, byOnError, late)
}

func TestPostgresDiesUnderTraefik(t *testing.T) {
	server := cluster.Private(t, cluster.Options{})
	tr := startTraefik(t, faultRoutes(startBackend(t), server.DSN("postgres")))
	awaitLimits(t, tr.url+"/allow", 10*time.Second)
	for _, outage := range []struct {
		name       string
		begin, end func() error
	}{
		{"killed", server.Kill, func() error { return server.Restart(context.Background()) }},
		{"stopped", server.Stop, func() error { return server.Restart(context.Background()) }},
		{"paused", server.Pause, server.Resume},
	} {
		t.Run(outage.name, func(t *testing.T) {
			stop := faultLoad(tr)
			time.Sleep(500 * time.Millisecond)
			if err := outage.begin(); err != nil {
				t.Fatal(err)
			}
			down := time.Now()
			time.Sleep(1500 * time.Millisecond)
			up := time.Now()
			if err := outage.end(); err != nil {
				t.Fatal(err)
			}
			awaitLimits(t, tr.url+"/deny", 2*time.Second)
			time.Sleep(500 * time.Millisecond)
			r := stop()
			checkFaults(t, r, down, up)
			if last := r.Replies[len(r.Replies)-1]; last.Started && last.Status != http.StatusOK {
				t.Errorf("the last request was answered %d", last.Status)
			}
		})
	}
}

func TestBlackHoleUnderTraefik(t *testing.T) {
	// connect_timeout bounds an attempt to connect, not a decision.
	dsn := "postgres://nobody@" + blackHole(t) + "/nothing?sslmode=disable&connect_timeout=3"
	tr := startTraefik(t, faultRoutes(startBackend(t), dsn))
	began := time.Now()
	stop := faultLoad(tr)
	time.Sleep(5 * time.Second)
	checkFaults(t, stop(), began, time.Now())
}
