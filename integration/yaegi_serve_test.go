package integration

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

var ok = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })

func TestInterpretedPluginIsExact(t *testing.T) {
	t.Parallel()
	p := loadPlugin(t)
	dsn := cluster.Open(t)
	forEachKind(t, func(t *testing.T, algorithm, limit string, durable bool) {
		for _, dsn := range []string{dsn, "memory"} {
			for _, most := range []int64{1, 5} { // the highest cost of a request
				h := p.mustHandler(t, ok, decideAlways(object{
					"dsn": dsn, "prefix": algorithm, "key": "up to " + strconv.FormatInt(most, 10), "limit": limit,
					"algorithm": algorithm, "durable": durable, "cost": "{header.X-Cost}",
				}))
				var admitted, other atomic.Int64
				var wait sync.WaitGroup
				for range 16 {
					wait.Add(1)
					go func() {
						defer wait.Done()
						for i := range 20 {
							cost := 1 + int64(i)%most
							switch ask(h, "X-Cost", strconv.FormatInt(cost, 10)).Code {
							case http.StatusOK:
								admitted.Add(cost)
							case http.StatusTooManyRequests:
							default:
								other.Add(1)
							}
						}
					}()
				}
				wait.Wait()
				if n := admitted.Load(); n > quota || n <= quota-most || other.Load() > 0 {
					t.Errorf("costs up to %d: %d admitted of %d; %d other answers\n%s", most, n, quota, other.Load(), p.err)
				}
			}
		}
	})
}

// ask sends a handler one request, with headers given as name, value.
func ask(h http.Handler, headers ...string) *httptest.ResponseRecorder {
	return askPath(h, "/a/b?q=1", headers...)
}

// askPath is ask for another path.
func askPath(h http.Handler, path string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "http://example.com"+path, nil)
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// TestInterpretedKeys shows which requests share a quota: each of them leaves one less.
func TestInterpretedKeys(t *testing.T) {
	p := loadPlugin(t)
	for i, c := range []struct {
		key          string
		first        []string
		same, others [][]string
	}{
		{"", nil, [][]string{{"X-A", "1"}}, nil},
		{"everybody", nil, [][]string{{"X-A", "1"}}, nil},
		{"{header.x-a}/{host}{method}{path}", []string{"X-A", "1"}, [][]string{{"X-A", "1", "X-B", "2"}}, [][]string{{"X-A", "2"}, nil}},
		{"{cookie.session}", []string{"Cookie", "a=b; session=1"}, [][]string{{"Cookie", "Session=1"}}, [][]string{{"Cookie", "session=2"}, nil}},
		{"{query.q}{remote_ip}", nil, [][]string{{"X-A", "1"}}, nil},
		{"{client_ip}", []string{"X-Forwarded-For", "192.0.2.9, 2001:db8::1, 10.0.0.1"}, [][]string{{"X-Forwarded-For", "192.0.2.8, 2001:db8::1"}, {"X-Forwarded-For", "2001:db8::2, 10.1.2.3"}}, [][]string{{"X-Forwarded-For", "2001:db8:0:1::2, 10.1.2.3"}, nil}},
	} {
		config := object{"dsn": "memory", "prefix": "keys" + strconv.Itoa(i), "limit": "10 1h", "ipStrategy": object{"excludedIPs": []string{"10.0.0.0/8"}}}
		if c.key != "" {
			config["key"] = c.key
		}
		h := p.mustHandler(t, ok, config)
		left := func(headers []string) string { return ask(h, headers...).Header().Get("X-RateLimit-Remaining") }
		if n := left(c.first); n != "9" {
			t.Errorf("%s: the first request leaves %s", c.key, n)
		}
		for j, headers := range c.same {
			if n := left(headers); n != strconv.Itoa(8-j) {
				t.Errorf("%s: %q leaves %s", c.key, headers, n)
			}
		}
		for _, headers := range c.others {
			if n := left(headers); n != "9" {
				t.Errorf("%s: %q leaves %s", c.key, headers, n)
			}
		}
	}
}

func TestInterpretedZonesAreAllOrNothing(t *testing.T) {
	t.Parallel()
	p := loadPlugin(t)
	for _, dsn := range []string{cluster.Open(t), "memory"} {
		h := p.mustHandler(t, ok, decideAlways(object{"dsn": dsn, "zones": []object{
			{"prefix": "user", "key": "{header.X-User}", "limit": "10 1h"},
			{"prefix": "all", "key": "all", "limit": "15 1h", "durable": true, "algorithm": "token_bucket"},
		}}))
		passed := map[string]int{}
		for i := range 30 {
			user := strconv.Itoa(i / 10)
			w := ask(h, "X-User", user)
			if w.Code == http.StatusOK {
				passed[user]++
			}
			if wantLimit := w.Header().Get("X-RateLimit-Limit"); i >= 20 && (wantLimit != "15" || w.Header().Get("Retry-After") == "" || !strings.HasPrefix(w.Body.String(), `{"error":"Too many requests","retryAfter":`)) {
				t.Errorf("request %d: %d %v %s", i, w.Code, w.Header(), w.Body)
			}
		}
		if passed["0"] != 10 || passed["1"] != 5 || passed["2"] != 0 {
			t.Errorf("%v passed of 10 each, want 10, 5 and none", passed)
		}
	}
}

// TestInterpretedRefusedRequestHoldsNoQuota: of two requests on the last unit of a
// quota, the first is refused by another limit, so the second passes.
func TestInterpretedRefusedRequestHoldsNoQuota(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	dsn := cluster.Open(t)
	h := loadPlugin(t).mustHandler(t, ok, decideAlways(object{"dsn": dsn, "inMemoryBlock": false, "zones": []object{
		{"prefix": "user", "key": "{header.X-User}", "limit": "1 1h"},
		{"prefix": "plan", "key": "{header.X-Plan}", "limit": "1 1h", "durable": true},
	}}))
	if w := ask(h, "X-User", "first", "X-Plan", "used-up"); w.Code != http.StatusOK {
		t.Fatalf("the first request: %d %s", w.Code, w.Body)
	}
	conn := connect(t, dsn)
	defer conn.Close(ctx)
	tx, err := conn.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(ctx, "SELECT FROM rate_limit_durable FOR UPDATE"); err != nil {
		t.Fatal(err)
	}
	askInBackground := func(plan string, waiting int64) chan int {
		status := make(chan int, 1)
		go func() { status <- ask(h, "X-User", "second", "X-Plan", plan).Code }()
		await(t, "the request to wait for a lock", func() bool {
			return queryInt(t, dsn, "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'") == waiting
		})
		return status
	}
	refused := askInBackground("used-up", 1)
	passes := askInBackground("new", 2)
	if err := tx.Rollback(ctx); err != nil {
		t.Error(err)
	}
	if a, b := <-refused, <-passes; a != http.StatusTooManyRequests || b != http.StatusOK {
		t.Errorf("the request of the plan that is used up: %d, the other: %d", a, b)
	}
}

func TestInterpretedPanicOfNextGoesThrough(t *testing.T) {
	h := loadPlugin(t).mustHandler(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }), object{"dsn": "memory", "prefix": "a", "limit": "5 1m"})
	defer func() {
		if p := recover(); p != http.ErrAbortHandler { //nolint:errorlint // it is this very value
			t.Errorf("recovered %v", p)
		}
	}()
	ask(h)
	t.Error("the panic did not go through")
}

// writer is a ResponseWriter that can be recognised.
type writer struct {
	http.ResponseWriter
	flushed bool
}

func (w *writer) Flush() { w.flushed = true }

// TestInterpretedPluginDoesNotWrap: if the plugin leaves the headers of a response alone, the
// next handler gets the writer of the response as it is.
func TestInterpretedPluginDoesNotWrap(t *testing.T) {
	w := &writer{ResponseWriter: httptest.NewRecorder()}
	h := loadPlugin(t).mustHandler(t, http.HandlerFunc(func(got http.ResponseWriter, _ *http.Request) {
		if f, ok := got.(http.Flusher); ok {
			f.Flush()
		}
	}), object{"dsn": "memory", "prefix": "a", "limit": "5 1m", "headers": "both"})
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	if !w.flushed {
		t.Error("next could not flush")
	}
}

func TestInterpretedPluginWithoutADatabase(t *testing.T) {
	p := loadPlugin(t)
	for onError, want := range map[string]int{"allow": http.StatusOK, "deny": http.StatusServiceUnavailable} {
		h := p.mustHandler(t, ok, object{"dsn": "postgres://u:hunter2@" + startBlackHole(t).address + "/x", "prefix": "a", "limit": "5 1m", "key": "{header.X-Secret}", "timeout": "20ms", "onError": onError})
		if w := ask(h, "X-Secret", "hunter2"); w.Code != want || w.Header().Get("X-RateLimit-Limit") != "" {
			t.Errorf("%s: %d %v", onError, w.Code, w.Header())
		}
	}
	if log := p.err.String(); !strings.Contains(log, "pg_ratelimit: middleware api-limit@file: ") || strings.Contains(log, "hunter2") || strings.Contains(p.out.String(), "hunter2") {
		t.Errorf("log: %s", log)
	}
}

// The keys of a URI do not depend on how the client writes it.
func TestInterpretedKeysOfAURI(t *testing.T) {
	h := loadPlugin(t).mustHandler(t, ok, object{"dsn": "memory", "prefix": "uri", "limit": "10 1h", "key": "{uri} {dir} {file} {path.0} {query}"})
	for i, url := range []string{"/a/b?q=x&y", "//a/./b?q=x;y"} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, url, nil))
		if left := w.Header().Get("X-RateLimit-Remaining"); left != strconv.Itoa(9-i) {
			t.Errorf("%s leaves %s, want %d", url, left, 9-i)
		}
	}
}
