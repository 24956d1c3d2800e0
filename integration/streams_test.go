package integration

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// usageBody is a body in OpenAI's form.
const usageBody = `{"usage":{"prompt_tokens":%d,"completion_tokens":%d}}`

// countOf returns the sum of the counts of a prefix and the keys that match a pattern of LIKE.
func countOf(t *testing.T, dsn, prefix, key string) int64 {
	t.Helper()
	return cluster.Query[int64](t, dsn, `SELECT coalesce(sum(count), 0)::bigint
		FROM (TABLE rate_limit_ephemeral UNION ALL TABLE rate_limit_durable) c
		WHERE prefix = $1 AND key LIKE $2`, prefix, key)
}

// memoryOfStream bounds by how much the memory of a proxy grows for each stream that runs.
const memoryOfStream = 1 << 20

// In both proxies, each event of a stream reaches its client before the upstream sends the next one, in a
// thousand streams at once: the upstream sends the second event of all streams after all clients have the
// first. The memory of the proxy stays within bounds.
func TestStreamsUnderLimitsOfTokensArriveEventByEvent(t *testing.T) {
	t.Parallel()
	const streams, events = 1000, 3
	dsn := cluster.Open(t)
	var gates sync.Map // by proxy and event: a *sync.WaitGroup that waits for all clients
	gate := func(proxy string, event int) *sync.WaitGroup {
		all := &sync.WaitGroup{}
		all.Add(streams)
		found, _ := gates.LoadOrStore(fmt.Sprint(proxy, event), all)
		return found.(*sync.WaitGroup)
	}
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for event := range events {
			_, _ = fmt.Fprintf(w, "data: %s\n\n", fmt.Sprintf(usageBody, event+1, 0))
			_ = http.NewResponseController(w).Flush()
			gate(r.Header.Get("X-Proxy"), event).Wait()
		}
	}))
	t.Cleanup(upstream.Close)
	both := startBoth(t, dsn, route{path: "/", backend: upstream.URL, limit: decideAlways(object{
		"prefix": "PROXY", "limit": "1000000 1h", "algorithm": "fixed_window", "key": "all", "unit": "tokens",
		"output": 1})})
	for i, proxy := range []string{"caddy", "traefik"} {
		url, before := both[i].url, peakMemory(both[i].PID())
		client, closeIdle := harness.NewClient(streams)
		client.Timeout = awaitTimeout
		defer closeIdle()
		var running sync.WaitGroup
		for range streams {
			running.Go(func() {
				readStream(t, client, url, proxy, events, func(event int) { gate(proxy, event).Done() })
			})
		}
		running.Wait()
		grown := peakMemory(both[i].PID()) - before
		t.Logf("%s: the memory grows by %d KB for each stream", proxy, grown/streams>>10)
		if grown > streams*memoryOfStream {
			t.Errorf("%s: the memory has grown by %d MB", proxy, grown>>20)
		}
		await(t, proxy+": all streams are counted", func() bool {
			return countOf(t, dsn, proxy, "%") == streams*events
		})
	}
}

// readStream reads a stream of a proxy, and calls done after each event.
func readStream(t *testing.T, client *http.Client, url, proxy string, events int, done func(event int)) {
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, nil)
	if err != nil {
		t.Error(err)
		return
	}
	r.Header.Set("X-Proxy", proxy)
	response, err := client.Do(r)
	if err != nil {
		t.Error(err)
		return
	}
	defer response.Body.Close()
	lines := bufio.NewReader(response.Body)
	for event := range events {
		line, err := lines.ReadString('\n')
		if err != nil || !strings.HasPrefix(line, "data: ") {
			t.Errorf("%s, event %d: %q, error %v", proxy, event+1, line, err)
		}
		_, _ = lines.ReadString('\n')
		done(event)
	}
	_, _ = io.Copy(io.Discard, lines)
}

// Caddy's encode compresses for the client if it comes before the handler, and does nothing after it, because
// the handler has set Accept-Encoding. The usage is read in both orders.
func TestEncodeLeavesUsageReadable(t *testing.T) {
	t.Parallel()
	dsn, address := cluster.Open(t), harness.FreeAddress(t)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, usageBody+"%5000s", 5, 2, "")
	}))
	t.Cleanup(upstream.Close)
	const limit = "\t\tpg_ratelimit %s {\n\t\t\tlimit 1000 1h\n\t\t\talgorithm fixed_window\n" +
		"\t\t\tunit tokens\n\t\t\toutput 1\n\t\t\ttimeout 30s\n\t\t}\n"
	config := "{\n\tadmin off\n}\nhttp://" + address + " {\n\troute /before {\n\t\tencode gzip\n" +
		fmt.Sprintf(limit, "before") + "\t\treverse_proxy " + upstream.URL + "\n\t}\n\troute /after {\n" +
		fmt.Sprintf(limit, "after") + "\t\tencode gzip\n\t\treverse_proxy " + upstream.URL + "\n\t}\n}\n"
	c := harness.RunCaddy(t, "", harness.Caddy(t, ".."), config, "DATABASE_URL="+dsn)
	c.AwaitAddress(t, address)
	for order, want := range map[string]string{"before": "gzip", "after": ""} {
		request := harness.Get("http://"+address+"/"+order, "Accept-Encoding", "gzip")
		request.Method = http.MethodPost
		response := harness.Ask(t, request)
		check.Equal(t, "Content-Encoding with encode "+order, response.Header.Get("Content-Encoding"), want)
		await(t, "the tokens with encode "+order, func() bool {
			return countOf(t, dsn, order, "%") == 7
		})
	}
}
