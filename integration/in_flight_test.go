package integration

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// holdingUpstream responds to /hold until the client disconnects, breaks off the response to /abort in its
// body, upgrades the connection of /echo and echoes, and responds to anything else immediately.
func holdingUpstream(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/hold":
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	case "/abort":
		fmt.Fprint(w, "a part")
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	case "/echo":
		conn, buffered, err := w.(http.Hijacker).Hijack()
		if err != nil {
			return
		}
		defer conn.Close()
		fmt.Fprint(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_, _ = io.Copy(conn, buffered)
	}
}

// holdSlot sends a request to /hold, and returns a function that disconnects. It retries until the request
// passes, because the slot of a request that has ended becomes free a little later.
func holdSlot(t *testing.T, url string) (end func()) {
	t.Helper()
	address := strings.TrimPrefix(url, "http://")
	await(t, url+": a free slot", func() bool {
		conn, err := net.Dial("tcp", address)
		check.OK(t, err)
		fmt.Fprintf(conn, "GET /hold HTTP/1.1\r\nHost: %s\r\n\r\n", address)
		status, err := bufio.NewReader(conn).ReadString('\n')
		check.OK(t, err)
		end = func() { conn.Close() }
		passes := strings.Contains(status, " 200 ")
		if !passes {
			end()
		}
		return passes
	})
	return end
}

// A request holds its slot until its response has ended, its client has gone, its upstream has given up, or
// the connection of an upgrade is closed, in both proxies.
func TestSlotsEndWithTheirRequests(t *testing.T) {
	t.Parallel()
	for store, dsn := range map[string]string{"Postgres": cluster.Open(t), "memory": "memory"} {
		upstream := harness.Serve(t, holdingUpstream)
		limit := object{"prefix": "PROXY", "key": "all", "algorithm": "in_flight", "limit": "3"}
		for proxy, url := range bothProxies(t, dsn, upstream, limit) {
			t.Run(proxy+" with slots in "+store, func(t *testing.T) { checkSlotsEnd(t, url) })
		}
	}
}

// checkSlotsEnd checks that requests to a proxy hold their slots until they end: by a response, an abort or
// the end of an upgraded connection.
func checkSlotsEnd(t *testing.T, url string) {
	awaitRemaining := func(want string) {
		t.Helper()
		await(t, "the requests to end", func() bool {
			// this request holds one slot itself
			return harness.Ask(t, harness.Get(url+"/")).Header.Get("X-RateLimit-Remaining") == want
		})
	}
	awaitRemaining("2")
	var ends []func()
	for range 3 {
		ends = append(ends, holdSlot(t, url))
	}
	fourth := harness.Ask(t, harness.Get(url+"/"))
	check.Equal(t, "status, Retry-After and limit of a fourth request", fmt.Sprint(fourth.Status,
		fourth.Header["Retry-After"], fourth.Header["X-Ratelimit-Limit"]), "429 [1] [3]")
	for i, end := range ends {
		end()
		awaitRemaining(fmt.Sprint(i))
	}
	for range 4 {
		if response, err := http.Get(url + "/abort"); err == nil {
			_, _ = io.Copy(io.Discard, response.Body)
			response.Body.Close()
		}
	}
	awaitRemaining("2")
	conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
	check.OK(t, err)
	fmt.Fprintf(conn,
		"GET /echo HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n",
		conn.RemoteAddr())
	response, err := http.ReadResponse(bufio.NewReader(conn), nil) //nolint:bodyclose // it has none
	if err != nil || response.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("an upgrade: %v, error %v, want 101", response, err)
	}
	// The request keeps its slot after the change of the protocol.
	time.Sleep(100 * time.Millisecond)
	awaitRemaining("1")
	conn.Close()
	awaitRemaining("2")
}
