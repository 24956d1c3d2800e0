package integration

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// holdingUpstream serves /hold until the client has gone, /abort without an end, /echo as a protocol of its own, and
// anything else at once. It notes the X-Name of each request.
type holdingUpstream struct {
	mu    sync.Mutex
	names []string
}

func (u *holdingUpstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	u.mu.Lock()
	u.names = append(u.names, r.Header.Get("X-Name"))
	u.mu.Unlock()
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
	case "/slow":
		time.Sleep(300 * time.Millisecond)
	}
}

// hold sends a request to /hold, and returns its status and what ends it.
func hold(t *testing.T, url string) (int, func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/hold", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("X-Key", "k")
	response, err := http.DefaultClient.Do(request) //nolint:bodyclose // the caller does
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, func() { cancel(); response.Body.Close() }
}

// A request holds its slot until its response has ended, its client has gone, its upstream has given up, or the connection
// of an upgrade is closed, in both proxies.
func TestSlotsEndWithTheirRequests(t *testing.T) {
	t.Parallel()
	for _, dsn := range []string{cluster.Open(t), "memory"} {
		upstream := httptest.NewServer(&holdingUpstream{})
		t.Cleanup(upstream.Close)
		for proxy, url := range bothProxies(t, dsn, upstream.URL, "zone caddy {\n\tkey all\n\talgorithm in_flight\n\tlimit 3\n}",
			object{"prefix": "traefik", "key": "all", "algorithm": "in_flight", "limit": "3"}) {
			free := func(want string) {
				t.Helper()
				await(t, proxy+": the requests to end", func() bool {
					return harness.Ask(t, harness.Get(url+"/")).Header.Get("X-RateLimit-Remaining") == want // it takes one itself
				})
			}
			free("2")
			var ends []func()
			for range 3 {
				status, end := hold(t, url)
				if status != http.StatusOK {
					t.Fatalf("%s answers %d", proxy, status)
				}
				ends = append(ends, end)
			}
			if a := harness.Ask(t, harness.Get(url+"/")); a.Status != http.StatusTooManyRequests || a.Header.Get("Retry-After") != "1" || a.Header.Get("X-RateLimit-Limit") != "3" {
				t.Errorf("%s answers a fourth request %d, %v", proxy, a.Status, a.Header)
			}
			for i, end := range ends {
				end()
				free(fmt.Sprint(i))
			}
			for range 4 {
				if response, err := http.Get(url + "/abort"); err == nil {
					_, _ = io.Copy(io.Discard, response.Body)
					response.Body.Close()
				}
			}
			free("2")
			conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(conn, "GET /echo HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n", conn.RemoteAddr())
			response, err := http.ReadResponse(bufio.NewReader(conn), nil) //nolint:bodyclose // it has none
			if err != nil || response.StatusCode != http.StatusSwitchingProtocols {
				t.Fatalf("%s: %v, %v", proxy, response, err)
			}
			time.Sleep(100 * time.Millisecond)
			free("1")
			conn.Close()
			free("2")
		}
	}
}

// Requests over a limit wait for their turn, in the order of arrival, and no longer than they may.
func TestRequestsWaitForTheirTurn(t *testing.T) {
	t.Parallel()
	for _, dsn := range []string{cluster.Open(t), "memory"} {
		u := &holdingUpstream{}
		upstream := httptest.NewServer(u)
		t.Cleanup(upstream.Close)
		zone := func(prefix, header, rest string) object {
			z := object{"prefix": prefix, "key": "{header." + header + "}"}
			for _, setting := range strings.Split(rest, "\n") {
				name, text, _ := strings.Cut(setting, " ")
				z[name] = text
			}
			return z
		}
		const one, window, short = "algorithm in_flight\nlimit 1\nwait up to 20s at most 5", "algorithm fixed_window\nlimit 1 1s\nwait up to 10s", "algorithm in_flight\nlimit 1\nwait up to 300ms at most 1"
		for proxy, urls := range map[string]map[string]string{
			"one":    bothProxies(t, dsn, upstream.URL, "zone one {\n\tkey {header.X-Key}\n\t"+strings.ReplaceAll(one, "\n", "\n\t")+"\n}", object{"zones": []object{zone("one-t", "X-Key", one)}}),
			"window": bothProxies(t, dsn, upstream.URL, "zone window {\n\tkey {header.X-Key}\n\t"+strings.ReplaceAll(window, "\n", "\n\t")+"\n}", object{"zones": []object{zone("window-t", "X-Key", window)}}),
			"short":  bothProxies(t, dsn, upstream.URL, "zone short {\n\tkey {header.X-Key}\n\t"+strings.ReplaceAll(short, "\n", "\n\t")+"\n}", object{"zones": []object{zone("short-t", "X-Key", short)}}),
		} {
			for name, url := range urls {
				t.Run(proxy+" "+name, func(t *testing.T) {
					ask := func(path string, n int) []int {
						u.mu.Lock()
						u.names = nil
						u.mu.Unlock()
						statuses := make([]int, n)
						var group sync.WaitGroup
						for i := range n {
							group.Go(func() {
								statuses[i] = harness.Ask(t, harness.Get(url+path, "X-Key", "k", "X-Name", fmt.Sprint(i))).Status
							})
							time.Sleep(60 * time.Millisecond)
						}
						group.Wait()
						return statuses
					}
					switch proxy {
					case "one":
						if got := fmt.Sprint(ask("/slow", 5)); got != "[200 200 200 200 200]" || fmt.Sprint(u.names) != "[0 1 2 3 4]" {
							t.Errorf("%s, in the order %v", got, u.names)
						}
						status, end := hold(t, url)
						gone, cancel := context.WithCancel(context.Background())
						request := harness.Get(url+"/hold", "X-Key", "k").WithContext(gone)
						time.AfterFunc(100*time.Millisecond, cancel)
						if _, err := http.DefaultClient.Do(request); err == nil || status != http.StatusOK { //nolint:bodyclose // there is none
							t.Error("a request beside the one in flight does not wait")
						}
						end()
						if got := fmt.Sprint(ask("/slow", 1)); got != "[200]" {
							t.Error(got)
						}
					case "window":
						began := time.Now()
						if got := fmt.Sprint(ask("/", 3)); got != "[200 200 200]" || fmt.Sprint(u.names) != "[0 1 2]" || time.Since(began) < 2*time.Second {
							t.Errorf("%s after %v, in the order %v", got, time.Since(began), u.names)
						}
					case "short":
						_, end := hold(t, url)
						defer end()
						began := time.Now()
						if a := harness.Ask(t, harness.Get(url+"/", "X-Key", "k")); a.Status != http.StatusTooManyRequests || a.Header.Get("Retry-After") != "1" || time.Since(began) < 290*time.Millisecond {
							t.Errorf("%d after %v", a.Status, time.Since(began))
						}
						began = time.Now()
						if got := fmt.Sprint(ask("/", 3)); got != "[429 429 429]" || time.Since(began) > 5*time.Second {
							t.Errorf("%s after %v", got, time.Since(began))
						}
					}
				})
			}
		}
	}
}

// A rule limits requests in flight over all proxies together, beside its other limits.
func TestARuleLimitsRequestsInFlight(t *testing.T) {
	t.Parallel()
	dsn := policyDatabase(t, "SELECT rate_limit_rule('reports', count_by => '{all}', in_flight => 2, per_hour => 1000)")
	upstream := httptest.NewServer(&holdingUpstream{})
	t.Cleanup(upstream.Close)
	urls := bothProxies(t, dsn, upstream.URL, "policy {\n\tuser {header.X-User}\n}", object{"policy": object{"user": "{header.X-User}"}})
	awaitObeyed(t, dsn, 2)
	ends := map[string]func(){}
	for proxy, url := range urls {
		status, end := hold(t, url)
		if status != http.StatusOK {
			t.Fatalf("%s answers %d", proxy, status)
		}
		ends[proxy] = end
	}
	for proxy, url := range urls {
		if a := harness.Ask(t, harness.Get(url+"/")); a.Status != http.StatusTooManyRequests || a.Header.Get("Retry-After") != "1" || a.Header.Get("X-RateLimit-Limit") != "2" {
			t.Errorf("%s answers a third request %d, %v", proxy, a.Status, a.Header)
		}
	}
	for proxy, end := range ends {
		end()
		await(t, proxy+": a free slot", func() bool { return harness.Ask(t, harness.Get(urls[proxy]+"/")).Status == http.StatusOK })
	}
	if n := queryInt(t, dsn, "SELECT count FROM rate_limit_ephemeral WHERE prefix = 'rule/reports/per_hour'"); n < 4 {
		t.Errorf("%d requests are counted", n)
	}
}
