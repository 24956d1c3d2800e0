package traefikplugin

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// Middlewares of several reloads share a history. It is closed, and what is pending written, before
// the pool is closed.
func TestAReloadLosesNoRecord(t *testing.T) {
	const reloads, each = 5, 20
	dsn := cluster.Open(t)
	r := newRegistry(100 * time.Millisecond)
	c := valid()
	c.DSN, c.Limit, c.Timeout, c.OnError, c.Audit, c.Lease = dsn, "1000000 1h", "30s", "deny", "all", "5%"
	var next served
	var last *handler
	for range reloads {
		ctx, cancel := context.WithCancel(t.Context())
		last = open(t, ctx, r, &next, c)
		h := withLeases(last)
		if _, leased := h.(*leasedHandler); leased {
			t.Fatal("a handler that does not record serves the requests")
		}
		for range each {
			if w := ask(h); w.Code != http.StatusOK {
				t.Fatalf("%d %s", w.Code, w.Body)
			}
		}
		r.mu.Lock()
		last.pool.longest = 0 // no request waits
		r.mu.Unlock()
		cancel()
	}
	for until := time.Now().Add(20 * time.Second); !isClosed(last.pool); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("the pool was not closed")
		}
	}
	conn := cluster.Watch(t, t.Context(), dsn)
	defer conn.Close(t.Context())
	var rows, requests, writers int
	err := conn.QueryRow(t.Context(), `SELECT (SELECT sum(count) FROM rate_limit_audit), (SELECT sum(requests) FROM rate_limit_metrics WHERE granularity = 'minute'),
		(SELECT count(*) FROM rate_limit_writers)`).Scan(&rows, &requests, &writers)
	if err != nil || rows != reloads*each || requests != reloads*each || writers < 1 {
		t.Errorf("%d rows and %d requests in the metrics, want %d; %v", rows, requests, reloads*each, err)
	}
}

// A secret in the path or in the host is not recorded.
func TestSecretsAreNotRecorded(t *testing.T) {
	for name, c := range map[string]struct {
		zone       Zone
		apiKey     string
		host, path bool
	}{
		"a path":                  {Zone{Key: "{path} {host}"}, "", false, false},
		"a hashed path":           {Zone{Key: "{path.1}", HashKey: "on"}, "", false, true},
		"a path that is not":      {Zone{Key: "{path.1}", HashKey: "off"}, "", false, false},
		"a path beside a secret":  {Zone{Key: "{path} {header.Authorization}"}, "", false, false},
		"an API key in the path":  {Zone{}, "{path.0}", false, true},
		"an API key in the host":  {Zone{}, "{labels.2}", true, false},
		"an API key in the query": {Zone{}, "{query.key}", false, false},
	} {
		zone := c.zone
		zone.Prefix, zone.Limit = "a", "5 1m"
		config := &Config{Zones: []Zone{zone}}
		var policy *compiledPolicy
		if c.apiKey != "" {
			config.Policy = []Policy{{APIKey: c.apiKey}}
			var err error
			if policy, err = config.policy(nil); err != nil {
				t.Fatal(err)
			}
		}
		zones, err := config.compile()
		if err != nil {
			t.Fatal(err)
		}
		r := newRecorder(nil, history.Audit{}, nil, policy, zones)
		if r.hidesHost != c.host || r.hidesPath != c.path {
			t.Errorf("%s: hides the host %v and the path %v, want %v and %v", name, r.hidesHost, r.hidesPath, c.host, c.path)
		}
	}
}
