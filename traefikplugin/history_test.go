package traefikplugin

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// The metrics count the requests that a lease decides, those that the database decides, and refusals, even if
// the audit log has only refusals.
func TestMetricsCountSourceOfDecision(t *testing.T) {
	const passed, refused = 40, 25
	dsn := cluster.Open(t)
	p := newProcess(100 * time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	var next passCounter
	handlers := make([]*handler, 2)
	for i, limit := range []string{"1000000 1h", "1 1h"} {
		handlers[i] = newMiddleware(t, ctx, p, &next, validConfig(Settings{"dsn": dsn, "prefix": limit,
			"limit": limit, "timeout": "30s", "onError": "deny", "audit": "denied", "lease": "5%",
			"route": "{method}"}))
		handlers[i].databases.After = 0 // no request can still arrive
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
	got := cluster.Query[string](t, dsn, `SELECT format(
			'%s admitted, %s of them in the handler with a lease, %s limited, %s in the audit log',
			sum(admitted),
			sum(from_lease + from_database) FILTER (WHERE limited = 0), sum(limited),
			(SELECT sum(count) FROM rate_limit_audit)) || string_agg(DISTINCT endpoint, ' ')
		FROM rate_limit_metrics WHERE granularity = 'minute'`)
	want := fmt.Sprintf("%d admitted, %d of them in the handler with a lease, %d limited, "+
		"%d in the audit logGET", passed+1, passed, refused, refused)
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// The records of the history hide the host or the path of a request if it may have a secret: if it is part of
// a hashed key, or has the API key.
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
		config := &Config{Other: Settings{}, Zones: []Zone{{Other: c.zone}}}
		if c.apiKey != "" {
			config.Other["policy"] = Settings{"apiKey": c.apiKey}
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
