package integration

import (
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// TestALimitInTheModeShadowRefusesNothing in both proxies: it is counted beside the other limits, the
// history says what it would have refused, and no header is about it. One that is off is not counted.
func TestALimitInTheModeShadowRefusesNothing(t *testing.T) {
	t.Parallel()
	dsn := cluster.Open(t)
	backend := startBackend(t)
	urls := bothProxies(t, dsn, backend, `zone caddy-trial {
	limit 2 1h
	algorithm fixed_window
	mode shadow
}
zone caddy-web {
	limit 5 1h
	algorithm fixed_window
	audit denied
}
zone caddy-off {
	limit 1 1h
	mode off
}`, object{"zones": []object{
		{"prefix": "traefik-trial", "limit": "2 1h", "algorithm": "fixed_window", "mode": "shadow"},
		{"prefix": "traefik-web", "limit": "5 1h", "algorithm": "fixed_window", "audit": "denied"},
		{"prefix": "traefik-off", "limit": "1 1h", "mode": "off"},
	}})
	for name, url := range urls {
		if got := quotaLeft(t, url); got != "5 4" {
			t.Errorf("%s: the headers say %q, want those of the limit that enforces", name, got)
		}
		if got := answersTo(t, 5, url); got != "200 200 200 200 429" {
			t.Errorf("%s answers %s", name, got)
		}
		for prefix, want := range map[string]int64{"trial": 2, "web": 5, "off": 0} {
			if got := queryInt(t, dsn, "SELECT coalesce(sum(count), 0)::bigint FROM rate_limit_ephemeral WHERE prefix = $1", name+"-"+prefix); got != want {
				t.Errorf("%s: %s has counted %d, want %d", name, prefix, got, want)
			}
		}
		// The request that is refused would have been refused by the limit on trial, too.
		await(t, "the history of "+name, func() bool {
			return queryInt(t, dsn, "SELECT count(*) FROM pg_class WHERE relname = 'rate_limit_audit'") == 1 &&
				queryInt(t, dsn, "SELECT coalesce(sum(count), 0)::bigint FROM rate_limit_audit WHERE prefix = $1 AND decision = 'shadow'", name+"-trial") == 4 &&
				queryInt(t, dsn, "SELECT coalesce(sum(count), 0)::bigint FROM rate_limit_audit WHERE prefix = $1 AND decision = 'limited'", name+"-web") == 1
		})
	}
}

// TestALimitAloneInTheModeShadow lets all requests pass, and answers have no headers.
func TestALimitAloneInTheModeShadow(t *testing.T) {
	t.Parallel()
	dsn := cluster.Open(t)
	backend := startBackend(t)
	for _, mode := range []string{"shadow", "off"} {
		for name, url := range bothProxies(t, dsn, backend, "prefix caddy-"+mode+"\nlimit 1 1h\nmode "+mode, object{"prefix": "traefik-" + mode, "limit": "1 1h", "mode": mode}) {
			if got := answersTo(t, 3, url); got != "200 200 200" {
				t.Errorf("%s, %s answers %s", name, mode, got)
			}
			if got := quotaLeft(t, url); got != " " {
				t.Errorf("%s, %s: the headers say %q", name, mode, got)
			}
		}
	}
}
