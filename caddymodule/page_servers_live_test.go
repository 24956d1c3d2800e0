package caddymodule_test

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// Where the policy and the history are on other servers than the counters, the page shows and changes all three.
func TestThePageShowsThePolicyAndTheHistoryOfOtherServers(t *testing.T) {
	counters, history := cluster.Open(t), cluster.Open(t)
	policy := withPolicy(t, people+`SELECT rate_limit_rule('plan', tiers => '{free}', algorithm => 'fixed_window', per_hour => 2);`)
	site := strings.NewReplacer("dsn DSN\n\t\t\thistory", "dsn "+counters+"\n\t\t\thistory {\n\t\t\t\tdsn "+history+"\n\t\t\t}",
		"limit 20 1h\n", "limit 20 1h\n\t\t\t\taudit all\n\t\t\t\tpolicy {\n\t\t\t\t\tdsn "+policy+"\n\t\t\t\t\tuser {header.X-User}\n\t\t\t\t\trefresh 50ms\n\t\t\t\t}\n").Replace(pageSite)
	c := &pageClient{start(t, site)}
	var session struct{ Database string }
	c.get("session", &session)
	if !strings.Contains(session.Database, ", policy in ") || !strings.Contains(session.Database, ", history in ") || strings.Contains(session.Database, "postgres:") {
		t.Errorf("the databases: %s", session.Database)
	}
	var state struct {
		Banner struct {
			Mode      string
			Recording bool
			Notes     []string
			Figures   []struct{ Text string }
		}
		Top     topOfPage
		Traffic struct {
			Minutes []struct{ Allowed, Refused int64 }
		}
		Near    struct{ Note *string }
		Proxies struct {
			Proxies []struct {
				Policy  bool
				Behind  *int64
				Remarks []any
			}
		}
		Changes struct{ Changes []struct{ Kind string } }
	}
	await.Within(t, time.Minute, "the proxy to obey the newest policy", func() bool {
		c.get("state", &state)
		p := state.Proxies.Proxies
		return len(p) == 1 && p[0].Policy && p[0].Behind != nil && *p[0].Behind == 0 && len(p[0].Remarks) == 0 && len(state.Banner.Notes) == 0 && state.Banner.Recording && len(state.Changes.Changes) > 0
	})
	if b := state.Banner; b.Mode != "enforcing" || b.Figures[len(b.Figures)-1].Text != "obeyed by all" || len(b.Notes) > 0 || state.Near.Note == nil {
		t.Errorf("the banner: %+v; above 80 %%: %+v", b, state.Near)
	}
	c.expect(http.StatusOK, "/x", "X-Key", "k", "X-User", "alice")
	c.expect(http.StatusOK, "/x", "X-Key", "k", "X-User", "alice")
	c.expect(http.StatusTooManyRequests, "/x", "X-Key", "k", "X-User", "alice")
	await.Within(t, time.Minute, "the requests", func() bool {
		c.get("state", &state)
		var allowed, refused int64
		for _, m := range state.Traffic.Minutes {
			allowed, refused = allowed+m.Allowed, refused+m.Refused
		}
		return state.Top.Requests == 3 && state.Top.Refused == 1 && allowed == 2 && refused == 1
	})
	var why struct {
		User      struct{ Tier string }
		Summary   string
		Counters  []struct{ Prefix string }
		Decisions []struct{ Text string }
		Note      *string `json:"decisions_note"`
		Next      struct {
			Passes      bool
			Explanation struct{ Limits []struct{ Left int64 } }
		}
	}
	await.Within(t, time.Minute, "the audit log, which is written after the sums", func() bool {
		c.post("why", map[string]any{"who": "alice"}, &why)
		return len(why.Decisions) == 3
	})
	if why.User.Tier != "free" || !strings.Contains(why.Summary, "was refused") || len(why.Decisions) != 3 || why.Next.Passes || len(why.Next.Explanation.Limits) != 1 {
		t.Errorf("why: %+v", why)
	}
	c.post("why", map[string]any{"who": "k", "kind": "counter"}, &why)
	if len(why.Counters) != 1 || why.Counters[0].Prefix != c.prefix() {
		t.Errorf("the counters of a key: %+v", why.Counters)
	}
	c.do("ban", map[string]any{"user": "alice", "for": "1h"})
	await.Within(t, time.Minute, "the ban", func() bool { return c.live.get("/x", "X-User", "alice").Status == http.StatusForbidden })
	c.do("pause", map[string]any{"for": "1m"})
	if n := cluster.Query[int](t, policy, "SELECT count(*) FROM rate_limit_bans WHERE user_id = 'alice' AND banned_by LIKE '% (ann)'"); n != 1 {
		t.Errorf("%d bans beside the policy", n)
	}
	if n := cluster.Query[int](t, counters, "SELECT count(*) FROM rate_limit_pause WHERE until > now()"); n != 1 {
		t.Errorf("%d pauses beside the counters", n)
	}
	c.do("resume", map[string]any{})

	// Without the history, the page says so, and shows the rest.
	name := cluster.Query[string](t, history, "SELECT current_database()")
	cluster.Execute(t, counters, fmt.Sprintf("ALTER DATABASE %q ALLOW_CONNECTIONS false; SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '%s'", name, name))
	await.Within(t, time.Minute, "the banner to say that the history is old", func() bool {
		c.get("state", &state)
		return state.Banner.Mode == "enforcing" && len(state.Banner.Notes) == 1 && strings.HasPrefix(state.Banner.Notes[0], "What is shown of the history is old: the database does not answer")
	})
	c.post("why", map[string]any{"who": "alice"}, &why)
	if why.Note == nil || !strings.Contains(*why.Note, "The history cannot be read: the database does not answer") || len(why.Decisions) != 0 {
		t.Errorf("why, without the history: %+v", why)
	}
}

// While the database makes no decisions, a proxy with on_error local limits by itself, and the page says so. Requests in
// flight, and what settles a cost, stand with the limit.
func TestThePageShowsLocalLimitsAndRequestsInFlight(t *testing.T) {
	dsn := cluster.Open(t)
	site := strings.NewReplacer("DSN", dsn, "limit 20 1h", "algorithm in_flight\n\t\t\t\tlimit 3", "timeout 10s", "timeout 100ms\n\t\t\t\ton_error local\n\t\t\t\tzone costs {\n\t\t\t\t\tkey {header.X-Key}\n\t\t\t\t\tlimit 1000 1h\n\t\t\t\t\tsettle header X-Cost\n\t\t\t\t\tmode shadow\n\t\t\t\t}").Replace(pageSite)
	c := &pageClient{start(t, site)}
	var state struct {
		Banner struct{ Mode, Level, Text string }
		Near   struct {
			Counters []struct {
				Key    string
				Used   int64
				Resets *time.Time
			}
		}
		Limits struct {
			Limits []struct {
				Prefix, Text, Mode, Algorithm string
				Settle                        string
				InFlight                      *int64 `json:"in_flight"`
			}
		}
		Proxies struct {
			Proxies []struct {
				Failing    *string
				LocalSince *time.Time `json:"local_since"`
				LocalUntil *time.Time `json:"local_until"`
				Counts     map[string]int64
			}
		}
	}
	c.expect(http.StatusOK, "/x", "X-Key", "k")
	await.Within(t, time.Minute, "the limits, without a request in flight", func() bool {
		c.get("state", &state)
		return len(state.Limits.Limits) == 2 && state.Limits.Limits[0].InFlight != nil && *state.Limits.Limits[0].InFlight == 0
	})
	flights, costs := state.Limits.Limits[0], state.Limits.Limits[1]
	if costs.Settle != "header X-Cost" || costs.Mode != "shadow" || costs.InFlight != nil {
		t.Errorf("the limit that settles: %+v", costs)
	}
	if flights.Text != "3 in flight" {
		t.Errorf("the limit of requests in flight: %+v", flights)
	}
	// Three requests of another proxy.
	cluster.Execute(t, dsn, `INSERT INTO rate_limit_processes (process, seen) VALUES (1, now() + interval '1 h');
		INSERT INTO rate_limit_ephemeral (prefix, key, slots, expires_at) SELECT '`+c.prefix()+`', 'other', array_agg((1::bigint << 32) + n), now() + interval '1 h' FROM generate_series(1, 3) AS n`)
	await.Within(t, time.Minute, "the requests in flight", func() bool {
		c.get("state", &state)
		return *state.Limits.Limits[0].InFlight == 3 && len(state.Near.Counters) == 1
	})
	if near := state.Near.Counters[0]; near.Key != "other" || near.Used != 3 || near.Resets != nil {
		t.Errorf("above 80 %%: %+v", near)
	}

	writer, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close(context.Background())
	if _, err := writer.Exec(t.Context(), "BEGIN; LOCK TABLE rate_limit_ephemeral IN SHARE ROW EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	isLocal := regexp.MustCompile(`(?m)^pg_ratelimit_local{node=.*} 1$`)
	await.Within(t, time.Minute, "the banner and the metrics to say that the proxy limits by itself", func() bool {
		c.live.get("/x", "X-Key", "k") // the database answers probes, so this state may end between two requests
		c.get("state", &state)
		_, _, metrics := c.page("GET", "/metrics", "")
		return state.Banner.Mode == "local_limits" && isLocal.MatchString(metrics)
	})
	p := state.Proxies.Proxies[0]
	if state.Banner.Level != "bad" || !strings.Contains(state.Banner.Text, "limits by itself, at its share of each limit") || p.Failing == nil || *p.Failing != "local" || p.LocalSince == nil {
		t.Errorf("the banner: %+v; the proxy: %+v", state.Banner, p)
	}
	if _, err := writer.Exec(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	await.Within(t, time.Minute, "the banner to say that the database decides again", func() bool {
		c.live.get("/x", "X-Key", "k")
		c.get("state", &state)
		return state.Banner.Mode == "enforcing" && state.Proxies.Proxies[0].LocalUntil != nil && state.Proxies.Proxies[0].LocalSince == nil
	})
}

// A proxy whose requests have no decision says so, with how many a second, and also when that is just over.
func TestThePageSaysThatAProxyLetsRequestsPass(t *testing.T) {
	dsn := cluster.Open(t)
	c := &pageClient{start(t, strings.NewReplacer("DSN", dsn, "limit 20 1h", "limit 1000000 1h", "timeout 10s", "timeout 1s").Replace(pageSite))}
	var state struct {
		Banner struct {
			Mode string
			Now  *struct{ Failed float64 }
		}
	}
	writer := cluster.Watch(t, t.Context(), dsn)
	defer writer.Close(context.Background())
	says := func(mode string) {
		t.Helper()
		await.Within(t, time.Minute, mode, func() bool {
			c.live.get("/x", "X-Key", "k")
			state.Banner.Now = nil
			c.get("state", &state)
			return state.Banner.Mode == mode && state.Banner.Now != nil && (state.Banner.Now.Failed > 0) == (mode == "failing_open")
		})
	}
	says("enforcing")
	if _, err := writer.Exec(t.Context(), "BEGIN; LOCK TABLE rate_limit_ephemeral IN SHARE ROW EXCLUSIVE MODE"); err != nil {
		t.Fatal(err)
	}
	says("failing_open")
	if _, err := writer.Exec(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	says("recovering")
}
