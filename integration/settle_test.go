package integration

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// settledResponse is a response of an upstream, and the cost that each kind of settle finds in it.
type settledResponse struct {
	name                        string
	method                      string // "" is GET
	respond                     http.HandlerFunc
	header, bytes, json, status int64
}

const (
	settleReserve   = 10
	moreThanReserve = -1 // in a settledResponse: more than settleReserve

	usageJSON   = `{"id":"a","usage":{"total_tokens":%s}}`
	usageEvents = "data: {\"usage\":null}\n\n" +
		"event: usage\ndata: {\"usage\":\ndata:  {\"total_tokens\":3}}\n\n"
)

// respondUsage responds with a cost in the body and in a header.
func respondUsage(tokens, header string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Tokens", header)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, usageJSON, tokens)
	}
}

// settledResponses returns a response of each kind. A stream continues after its first events when the test
// sends on goOn.
func settledResponses(goOn <-chan struct{}) []settledResponse {
	size := func(tokens string) int64 { return int64(len(fmt.Sprintf(usageJSON, tokens))) }
	responses := []settledResponse{
		{name: "plain", respond: respondUsage("7", "25"), header: 25, bytes: size("7"), json: 7},
		{name: "without a body", method: "HEAD", respond: respondUsage("7", "25"), header: 25, json: 10},
		{name: "free", respond: respondUsage("0", "0"), bytes: size("0")},
		{name: "silent", respond: func(http.ResponseWriter, *http.Request) {}, header: 10, json: 10},
		{name: "denied", respond: func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusUnauthorized)
		}, header: 10, json: 10, status: 1},
		{name: "hint", respond: func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Tokens", "99")
			w.WriteHeader(http.StatusEarlyHints)
			respondUsage("7", "25")(w, r)
		}, header: 25, bytes: size("7"), json: 7},
		{name: "encoded", respond: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Encoding", "x-own") // a proxy may decode gzip itself
			z := gzip.NewWriter(w)
			fmt.Fprintf(z, usageJSON, "7")
			_ = z.Close()
		}, header: 10, bytes: moreThanReserve, json: 10},
		{name: "trailer", respond: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", "X-Tokens")
			fmt.Fprint(w, "ok")
			w.Header().Set("X-Tokens", "25")
		}, header: 25, bytes: 2, json: 10},
		{name: "stream", respond: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			for _, part := range []string{usageEvents, "data: {\"usage\":{\"total",
				"_tokens\":7}}\r\n\r\ndata: [DONE]\n\n"} {
				fmt.Fprint(w, part)
				_ = http.NewResponseController(w).Flush()
				if part == usageEvents {
					<-goOn
				}
			}
		}, header: 10, bytes: moreThanReserve, json: 7},
		{name: "broken", respond: func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("X-Tokens", "25")
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprintf(w, "%-1000s", "data: {\"usage\":{\"total_tokens\":7}}\n\n")
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}, header: 25, bytes: 1000, json: 7},
		{name: "upgrade", respond: func(w http.ResponseWriter, _ *http.Request) {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				panic(err)
			}
			defer conn.Close()
			fmt.Fprintf(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+
				"echo\r\nX-Tokens: 25\r\n\r\n%500s", "")
		}, header: 25, bytes: 500, json: 10},
	}
	for _, invalid := range []string{"-5", "1e30", "9007199254740993", `"many"`, "2.5"} {
		responses = append(responses, settledResponse{name: "invalid " + invalid,
			respond: respondUsage(invalid, invalid), header: 10, bytes: size(invalid), json: 10})
	}
	return responses
}

// In both proxies, the response settles the charge. The client does not receive the header with the cost. It
// receives a stream without delay, and an error if the upstream breaks off its response.
func TestRequestsAreSettledByTheirResponses(t *testing.T) {
	t.Parallel()
	dsn := cluster.Open(t)
	goOn := make(chan struct{})
	responses := settledResponses(goOn)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := r.Header.Get("X-Case")
		i := slices.IndexFunc(responses, func(s settledResponse) bool { return s.name == name })
		responses[i].respond(w, r)
	}))
	t.Cleanup(upstream.Close)
	kinds := []string{"header", "bytes", "json", "status"}
	var zones []object
	for i, settle := range []string{"header x-tokens", "bytes", "json usage.total_tokens",
		"status 401 403 = 1, else 0"} {
		zones = append(zones, object{"prefix": "PROXY-" + kinds[i], "limit": "1000000 1h",
			"algorithm": "fixed_window", "key": "{header.X-Case}", "cost": settleReserve, "settle": settle})
	}
	counted := func(proxy, kind, key string) int64 {
		return countOf(t, dsn, proxy+"-"+kind, key)
	}
	proxies := bothProxies(t, dsn, upstream.URL, object{"zones": zones})
	for _, r := range responses {
		for proxy, url := range proxies {
			if got := askSettled(t, url, &r, goOn); got != "" {
				t.Errorf("%s, %s: the client sees X-Tokens %q, want none", proxy, r.name, got)
			}
			for i, want := range []int64{r.header, r.bytes, r.json, r.status} {
				what := fmt.Sprintf("%s, %s: the count by %s to be %d", proxy, r.name, kinds[i], want)
				await(t, what, func() bool {
					got := counted(proxy, kinds[i], r.name)
					return got == want || want == moreThanReserve && got > settleReserve
				})
			}
		}
	}
	time.Sleep(50 * time.Millisecond) // a second settlement would come without an event to wait for
	for proxy := range proxies {
		if got := counted(proxy, "header", "plain"); got != 25 {
			t.Errorf("%s: count is %d after settling, want 25", proxy, got)
		}
	}
}

// askSettled sends a request, reads the response to its end, and lets a stream continue. It returns the cost
// that the client sees, or "". The test fails if a stream is delayed, or if a broken response ends without an
// error.
func askSettled(t *testing.T, url string, s *settledResponse, goOn chan<- struct{}) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), s.method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Case", s.name)
	if s.name == "upgrade" {
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", "echo")
	}
	response, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatalf("%s: %v", s.name, err)
	}
	if s.name == "stream" {
		line, err := bufio.NewReader(response.Body).ReadString('\n')
		if want := "data: {\"usage\":null}\n"; err != nil || line != want {
			t.Errorf("the stream begins with %q, %v, want %q", line, err, want)
		}
		goOn <- struct{}{}
	}
	_, err = io.Copy(io.Discard, response.Body)
	if broken := s.name == "broken"; (err != nil) != broken {
		t.Errorf("%s: reading the body returns %v, want an error: %t", s.name, err, broken)
	}
	_ = response.Body.Close()
	return response.Header.Get("X-Tokens") + response.Trailer.Get("X-Tokens")
}
