package traefikplugin

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
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

// The metrics say of each request whether a lease or the database decided it, and refusals are counted, also if
// the audit log has refusals only.
func TestTheMetricsSayWhatDecided(t *testing.T) {
	const passed, refused = 40, 25
	dsn := cluster.Open(t)
	r := newRegistry(100 * time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	var next served
	handlers := make([]*handler, 2)
	for i, limit := range []string{"1000000 1h", "1 1h"} {
		c := valid()
		c.DSN, c.Prefix, c.Limit, c.Timeout, c.OnError, c.Audit, c.Lease = dsn, limit, limit, "30s", "deny", "denied", "5%"
		handlers[i] = open(t, ctx, r, &next, c)
	}
	for range passed {
		ask(handlers[0])
	}
	for range refused + 1 {
		ask(handlers[1])
	}
	pool := handlers[0].pool
	r.mu.Lock()
	pool.longest = 0 // no request waits
	r.mu.Unlock()
	cancel()
	for until := time.Now().Add(20 * time.Second); !isClosed(pool); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("the pool was not closed")
		}
	}
	conn := cluster.Watch(t, t.Context(), dsn)
	defer conn.Close(t.Context())
	var allowed, decided, limited, audited int
	err := conn.QueryRow(t.Context(), `SELECT sum(allowed), sum(from_lease + from_database) FILTER (WHERE limited = 0), sum(limited), (SELECT sum(count) FROM rate_limit_audit)
		FROM rate_limit_metrics WHERE granularity = 'minute'`).Scan(&allowed, &decided, &limited, &audited)
	if err != nil || allowed != passed+1 || decided != passed || limited != refused || audited != refused {
		t.Errorf("%d passed, %d of them decided by a lease or by the database, %d refused, %d in the audit log; want %d, %d, %d, %d; %v", allowed, decided, limited, audited,
			passed+1, passed, refused, refused, err)
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
			if policy, err = config.policy(nil, edge.StoreSettings{}); err != nil {
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
