package traefikplugin

import (
	"context"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// The metrics count each request by its source, a lease or the database, and count refusals, even if the
// audit log has only refusals.
func TestTheMetricsSayWhatDecided(t *testing.T) {
	const passed, refused = 40, 25
	dsn := cluster.Open(t)
	p := newProcess(100 * time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	var next served
	handlers := make([]*handler, 2)
	for i, limit := range []string{"1000000 1h", "1 1h"} {
		c := valid()
		c.Other["dsn"], c.Other["prefix"], c.Other["limit"], c.Other["timeout"], c.Other["onError"],
			c.Other["audit"], c.Other["lease"] = dsn, limit, limit, "30s", "deny", "denied", "5%"
		handlers[i] = open(t, ctx, p, &next, c)
		handlers[i].use.After = 0 // no request can still arrive
	}
	for range passed {
		ask(handlers[0])
	}
	for range refused + 1 {
		ask(handlers[1])
	}
	conn := cluster.Watch(t, t.Context(), dsn)
	defer conn.Close(t.Context())
	await.Within(t, time.Minute, "the history's tables, and the refusals in them", func() bool {
		var audited int
		err := conn.QueryRow(t.Context(), "SELECT sum(count) FROM rate_limit_audit").Scan(&audited)
		return err == nil && audited == refused
	})
	cancel()
	await.Within(t, time.Minute, "the store to be closed", func() bool { return isClosed(handlers[0]) })
	var allowed, decided, limited, audited int
	err := conn.QueryRow(t.Context(), `SELECT sum(allowed),
			sum(from_lease + from_database) FILTER (WHERE limited = 0), sum(limited),
			(SELECT sum(count) FROM rate_limit_audit)
		FROM rate_limit_metrics WHERE granularity = 'minute'`).Scan(&allowed, &decided, &limited, &audited)
	if err != nil || allowed != passed+1 || decided != passed || limited != refused || audited != refused {
		t.Errorf("%d passed, %d of them decided by a lease or by the database, %d refused, %d in the "+
			"audit log; want %d, %d, %d, %d; %v", allowed, decided, limited, audited,
			passed+1, passed, refused, refused, err)
	}
}

// A secret in the path or in the host is not recorded.
func TestSecretsAreNotRecorded(t *testing.T) {
	for name, c := range map[string]struct {
		zone       Settings
		apiKey     string
		host, path bool
	}{
		"a path":                  {Settings{"key": "{path} {host}"}, "", false, false},
		"a hashed path":           {Settings{"key": "{path.1}", "hashKey": "on"}, "", false, true},
		"a path that is not":      {Settings{"key": "{path.1}", "hashKey": "off"}, "", false, false},
		"a path beside a secret":  {Settings{"key": "{path} {header.Authorization}"}, "", false, false},
		"an API key in the path":  {Settings{}, "{path.0}", false, true},
		"an API key in the host":  {Settings{}, "{labels.2}", true, false},
		"an API key in the query": {Settings{}, "{query.key}", false, false},
	} {
		c.zone["prefix"], c.zone["limit"] = "a", "5 1m"
		config := &Config{Zones: []Zone{{Other: c.zone}}}
		if c.apiKey != "" {
			config.Policy = []Settings{{"apiKey": c.apiKey}}
		}
		made, err := config.compile()
		if err != nil {
			t.Fatal(err)
		}
		made.site.Prepare()
		if r := made.site.Hidden; r.Host != c.host || r.Path != c.path {
			t.Errorf("%s: hides the host %v and the path %v, want %v and %v", name, r.Host, r.Path, c.host,
				c.path)
		}
	}
}
