package traefikplugin

import (
	"context"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

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
	await.Within(t, time.Minute, "the pool to be closed", func() bool { return isClosed(pool) })
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
		if c.apiKey != "" {
			config.Policy = []Policy{{APIKey: c.apiKey}}
		}
		made, err := config.compile()
		if err != nil {
			t.Fatal(err)
		}
		made.site.Hide()
		if r := made.site.Hidden; r.Host != c.host || r.Path != c.path {
			t.Errorf("%s: hides the host %v and the path %v, want %v and %v", name, r.Host, r.Path, c.host, c.path)
		}
	}
}
