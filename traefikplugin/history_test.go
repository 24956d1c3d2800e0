package traefikplugin

import (
	"context"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// TestMetricsCountSourceOfDecision checks that the metrics count requests decided by a lease, requests
// decided by the database, and refusals, even if the audit log has only refusals.
func TestMetricsCountSourceOfDecision(t *testing.T) {
	const passed, refused = 40, 25
	dsn := cluster.Open(t)
	p := newProcess(100 * time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	var next passCounter
	handlers := make([]*handler, 2)
	for i, limit := range []string{"1000000 1h", "1 1h"} {
		handlers[i] = newMiddleware(t, ctx, p, &next, validConfig(Settings{"dsn": dsn, "prefix": limit,
			"limit": limit, "timeout": "30s", "onError": "deny", "audit": "denied", "lease": "5%"}))
		handlers[i].handle.After = 0 // no request can still arrive
	}
	for range passed {
		get(handlers[0])
	}
	for range refused + 1 {
		get(handlers[1])
	}
	conn := cluster.Watch(t, t.Context(), dsn)
	defer conn.Close(t.Context())
	await.Within(t, time.Minute, "the refusals in the history", func() bool {
		var audited int
		err := conn.QueryRow(t.Context(), "SELECT sum(count) FROM rate_limit_audit").Scan(&audited)
		return err == nil && audited == refused
	})
	cancel()
	await.Within(t, time.Minute, "the end of the store", func() bool { return isClosed(handlers[0]) })
	var allowed, decided, limited, audited int
	err := conn.QueryRow(t.Context(), `SELECT sum(allowed),
			sum(from_lease + from_database) FILTER (WHERE limited = 0), sum(limited),
			(SELECT sum(count) FROM rate_limit_audit)
		FROM rate_limit_metrics WHERE granularity = 'minute'`).Scan(&allowed, &decided, &limited, &audited)
	if err != nil || allowed != passed+1 || decided != passed || limited != refused || audited != refused {
		t.Errorf("%d allowed, %d of them decided by a lease or the database, %d limited, "+
			"%d in the audit log, error %v; want %d, %d, %d, %d, nil", allowed, decided, limited, audited,
			err, passed+1, passed, refused, refused)
	}
}

// TestSecretsAreNotRecorded checks which parts of a request are hidden because they may have a secret.
func TestSecretsAreNotRecorded(t *testing.T) {
	for name, c := range map[string]struct {
		zone       Settings
		apiKey     string
		host, path bool
	}{
		"a path":                  {zone: Settings{"key": "{path} {host}"}},
		"a hashed path":           {zone: Settings{"key": "{path.1}", "hashKey": "on"}, path: true},
		"a path that is not":      {zone: Settings{"key": "{path.1}", "hashKey": "off"}},
		"a path beside a secret":  {zone: Settings{"key": "{path} {header.Authorization}"}},
		"an API key in the path":  {zone: Settings{}, apiKey: "{path.0}", path: true},
		"an API key in the host":  {zone: Settings{}, apiKey: "{labels.2}", host: true},
		"an API key in the query": {zone: Settings{}, apiKey: "{query.key}"},
	} {
		c.zone["prefix"], c.zone["limit"] = "a", "5 1m"
		config := &Config{Zones: []Zone{{Other: c.zone}}}
		if c.apiKey != "" {
			config.Policy = []Settings{{"apiKey": c.apiKey}}
		}
		compiled, err := config.compile()
		if err != nil {
			t.Fatal(err)
		}
		compiled.site.Prepare()
		if r := compiled.site.Hidden; r.Host != c.host || r.Path != c.path {
			t.Errorf("%s: host hidden %v and path hidden %v, want %v and %v", name, r.Host, r.Path, c.host,
				c.path)
		}
	}
}
