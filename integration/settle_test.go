package integration

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// startSettlingUpstream answers in the ways in which a request can be settled. A stream goes on after it has
// sent its first event when something is sent on the channel.
func startSettlingUpstream(t *testing.T, goOn <-chan struct{}) string {
	const usage = `{"id":"a","usage":{"total_tokens":%s}}`
	answer := func(tokens, header string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Tokens", header)
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, usage, tokens)
		}
	}
	paths := http.NewServeMux()
	paths.HandleFunc("/plain", answer("7", "25"))
	paths.HandleFunc("/free", answer("0", "0"))
	for name, lie := range map[string]string{"negative": "-5", "huge": "1e30", "large": "9007199254740993",
		"text": `"many"`, "part": "2.5"} {
		paths.HandleFunc("/"+name, answer(lie, lie))
	}
	paths.HandleFunc("/silent", func(http.ResponseWriter, *http.Request) {})
	paths.HandleFunc("/denied", func(w http.ResponseWriter,
		_ *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
	})
	paths.HandleFunc("/hint", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Tokens", "99")
		w.WriteHeader(http.StatusEarlyHints)
		answer("7", "25")(w, r)
	})
	paths.HandleFunc("/compressed", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		fmt.Fprintf(z, usage, "7")
		_ = z.Close()
	})
	paths.HandleFunc("/trailer", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Tokens")
		fmt.Fprint(w, "ok")
		w.Header().Set("X-Tokens", "25")
	})
	paths.HandleFunc("/stream", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: {\"usage\":null}\n\nevent: usage\ndata: {\"usage\":\ndata:  "+
			"{\"total_tokens\":3}}\n\n")
		_ = http.NewResponseController(w).Flush()
		<-goOn
		fmt.Fprint(w, "data: {\"usage\":{\"total")
		_ = http.NewResponseController(w).Flush()
		fmt.Fprint(w, "_tokens\":7}}\r\n\r\ndata: [DONE]\n\n")
	})
	paths.HandleFunc("/broken", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Tokens", "25")
		w.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprint(w, "data: {\"usage\":{\"total_tokens\":7}}\n\n"+strings.Repeat("x", 1000-36))
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	paths.HandleFunc("/upgrade", func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+
			"echo\r\nX-Tokens: 25\r\n\r\n"+strings.Repeat("x", 500))
	})
	server := httptest.NewServer(paths)
	t.Cleanup(server.Close)
	return server.URL
}

// countOf returns the count of a key of a limit.
func countOf(t *testing.T, dsn, prefix, key string) int64 {
	t.Helper()
	return cluster.Query[int64](t, dsn,
		"SELECT coalesce(sum(count), 0)::bigint FROM rate_limit_ephemeral WHERE prefix = $1 AND key = $2",
		prefix, key)
}

// settledResponses are the requests that settledUpstream answers, and the cost that each kind of settle finds
// in the answer. -1 is more than the cost of 10.
var settledResponses = []struct {
	path, method                string
	header, bytes, json, status int64
}{
	{"/plain", "GET", 25, lengthOfJSON("7"), 7, 0},
	{"/free", "GET", 0, lengthOfJSON("0"), 0, 0},
	{"/negative", "GET", 10, lengthOfJSON("-5"), 10, 0},
	{"/huge", "GET", 10, lengthOfJSON("1e30"), 10, 0},
	{"/large", "GET", 10, lengthOfJSON("9007199254740993"), 10, 0},
	{"/text", "GET", 10, lengthOfJSON(`"many"`), 10, 0},
	{"/part", "GET", 10, lengthOfJSON("2.5"), 10, 0},
	{"/silent", "GET", 10, 0, 10, 0},
	{"/plain", "HEAD", 25, 0, 10, 0},
	{"/denied", "GET", 10, 0, 10, 1},
	{"/hint", "GET", 25, lengthOfJSON("7"), 7, 0},
	{"/compressed", "GET", 10, -1, 10, 0},
	{"/trailer", "GET", 25, 2, 10, 0},
	{"/stream", "GET", 10, -1, 7, 0},
	{"/broken", "GET", 25, 1000, 7, 0},
	{"/upgrade", "GET", 25, 500, 10, 0},
}

// lengthOfJSON returns the length of an answer with a number of tokens.
func lengthOfJSON(tokens string) int64 {
	return int64(len(`{"id":"a","usage":{"total_tokens":` + tokens + `}}`))
}

// TestRequestsAreSettledByTheirResponses in both proxies, for each kind of response. The client never sees
// the header with the cost, and a stream reaches it at once.
func TestRequestsAreSettledByTheirResponses(t *testing.T) {
	t.Parallel()
	dsn := cluster.Open(t)
	goOn := make(chan struct{})
	upstream := startSettlingUpstream(t, goOn)
	kinds := []string{"header", "bytes", "json", "status"}
	settles := map[string]string{"header": "header x-tokens", "bytes": "bytes",
		"json": "json usage.total_tokens", "status": "status 401 403 = 1, else 0"}
	var zones []object
	for _, kind := range kinds {
		zones = append(zones, object{"prefix": "PROXY-" + kind, "limit": "1000000 1h",
			"algorithm": "fixed_window",
			"key":       "{header.X-Case}", "cost": "10", "settle": settles[kind]})
	}
	proxies := bothProxies(t, dsn, upstream, object{"zones": zones})
	for _, test := range settledResponses {
		for proxy, url := range proxies {
			name := test.method + " " + test.path
			if got := askSettled(t, test.method, url+test.path, name, goOn); got != "" {
				t.Errorf("%s, %s: the client sees %s", proxy, name, got)
			}
			got := make([]int64, len(kinds))
			want := []int64{test.header, test.bytes, test.json, test.status}
			await(t, fmt.Sprintf("%s, %s: %s to be %v, which are %v", proxy, name, kinds, want, got),
				func() bool {
					same := true
					for i, kind := range kinds {
						got[i] = countOf(t, dsn, proxy+"-"+kind, name)
						same = same && (got[i] == want[i] || want[i] < 0 && got[i] > 10)
					}
					return same
				})
		}
	}
	// Nothing is settled twice.
	time.Sleep(50 * time.Millisecond) // what does not happen has no event
	for proxy := range proxies {
		if got := countOf(t, dsn, proxy+"-header", "GET /plain"); got != 25 {
			t.Errorf("%s: %d are counted later", proxy, got)
		}
	}
}

// askSettled sends a request with a key, reads the answer to its end, and lets a stream go on. It returns the
// cost that the client sees, "" for none.
func askSettled(t *testing.T, method, url, key string, goOn chan<- struct{}) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Case", key)
	if strings.HasSuffix(url, "/upgrade") {
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", "echo")
	}
	answer, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatalf("%s: %v", url, err)
	}
	if strings.HasSuffix(url, "/stream") {
		line, err := bufio.NewReader(answer.Body).ReadString('\n')
		if err != nil || line != "data: {\"usage\":null}\n" {
			t.Errorf("%s: the stream begins with %q, %v", url, line, err)
		}
		goOn <- struct{}{}
	}
	_, _ = io.Copy(io.Discard, answer.Body) // /broken has an error
	_ = answer.Body.Close()
	return answer.Header.Get("X-Tokens") + answer.Trailer.Get("X-Tokens")
}
