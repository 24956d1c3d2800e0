package integration

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

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
	gate := func(proxy string, event int64) *sync.WaitGroup {
		all := &sync.WaitGroup{}
		all.Add(streams)
		found, _ := gates.LoadOrStore(fmt.Sprint(proxy, event), all)
		return found.(*sync.WaitGroup)
	}
	upstream := harness.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for event := range int64(events) {
			_, _ = fmt.Fprintf(w, "data: %s\n\n", fmt.Sprintf(usageBody, event+1, 0))
			_ = http.NewResponseController(w).Flush()
			gate(strings.Trim(r.URL.Path, "/"), event).Wait()
		}
	})
	both := startBoth(t, dsn, route{path: "/", backend: upstream, limit: decideAlways(object{
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
				readEvents(t, client, url+"/"+proxy, func(event int64) { gate(proxy, event-1).Done() })
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
