package integration

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// decisionOf is the decision in the history that an answer stands for.
var decisionOf = map[int]string{
	http.StatusOK: "allowed", http.StatusTooManyRequests: "limited", http.StatusForbidden: "blocked", http.StatusUnauthorized: "rejected",
}

// TestTheHistoryHasEveryRequest sends 100,000 requests through two Caddies and a Traefik, and
// compares the audit log, the metrics and the usage with what the load generator has counted.
func TestTheHistoryHasEveryRequest(t *testing.T) {
	const requests, users = 100000, 50
	dsn := policyDatabase(t, people+fmt.Sprintf(`
		INSERT INTO rate_limit_users (user_id, tier) SELECT 'u' || i, 'free' FROM generate_series(0, %d) AS i;
		SELECT rate_limit_rule('plan', tiers => '{free}', algorithm => 'fixed_window', per_day => 900);
		SELECT rate_limit_rule('closed', action => 'block', paths => '{/closed}');`, users-1))
	proxies := startGoverned(t, dsn, []string{"timeout 30s", "on_error deny", "audit all"}, decideAlways(object{"audit": "all"}))
	awaitObeyed(t, dsn, len(proxies))

	// A tenth of the requests go to the Traefik, whose plugin is interpreted.
	proxyOf := func(i int) proxy {
		if i/20%10 == 9 {
			return proxies[2]
		}
		return proxies[i/20%2]
	}
	// The sender and the path of request i. Of twenty requests, one is blocked, and one has an API
	// key that nobody has.
	sender := func(i int) string { return fmt.Sprint("u", i%users) }
	request := func(i int) *http.Request {
		url := proxyOf(i).url
		switch i % 20 {
		case 7:
			return harness.Get(url+"/closed?secret=1", "X-User", sender(i))
		case 11:
			return harness.Get(url+"/open", "Authorization", "Bearer unknown")
		}
		return harness.Get(url+"/open", "X-User", sender(i))
	}
	r := harness.Run(t.Context(), harness.Load{Clients: 48, Requests: requests, Request: request})
	if err := r.Err(); err != nil {
		t.Fatal(err)
	}
	t.Logf("the load: %v", r)
	byDecision, byUser, refused := map[string]int64{}, map[string]int64{}, map[string]int64{}
	for i, reply := range r.Replies {
		byDecision[decisionOf[reply.Status]]++
		if i%20 != 11 {
			byUser[sender(i)]++
			if reply.Status != http.StatusOK {
				refused[sender(i)]++
			}
		}
	}
	if byDecision["allowed"] == 0 || byDecision["limited"] == 0 || byDecision["blocked"] != requests/20 || byDecision["rejected"] != requests/20 {
		t.Fatalf("the answers are %v", r.Status)
	}

	await(t, "the whole history", func() bool {
		return queryInt(t, dsn, "SELECT coalesce(sum(count), 0) FROM rate_limit_audit") >= requests &&
			queryInt(t, dsn, "SELECT coalesce(sum(requests), 0) FROM rate_limit_metrics WHERE granularity = 'minute'") >= requests &&
			queryInt(t, dsn, "SELECT coalesce(sum(requests), 0) FROM rate_limit_usage") >= requests-requests/20
	})
	for decision, want := range byDecision {
		if got := queryInt(t, dsn, "SELECT sum(count) FROM rate_limit_audit WHERE decision = '"+decision+"'"); got != want {
			t.Errorf("the audit log has %d requests that were %s, want %d", got, decision, want)
		}
		if got := queryInt(t, dsn, "SELECT sum("+decision+") FROM rate_limit_metrics WHERE granularity = 'minute'"); got != want {
			t.Errorf("the metrics have %d requests that were %s, want %d", got, decision, want)
		}
	}
	for _, sum := range []struct{ what, sql string }{
		{"the audit log", "SELECT sum(count) FROM rate_limit_audit"},
		{"the metrics", "SELECT sum(requests) FROM rate_limit_metrics WHERE granularity = 'minute'"},
		{"the latencies", "SELECT sum(n) FROM rate_limit_metrics, unnest(latency) AS n WHERE granularity = 'minute'"},
		{"the writers", "SELECT sum(written) FROM rate_limit_writers"},
	} {
		if got := queryInt(t, dsn, sum.sql); got != requests {
			t.Errorf("%s have %d requests, want %d", sum.what, got, requests)
		}
	}
	for user, want := range byUser {
		if got := queryInt(t, dsn, "SELECT sum(requests) FROM rate_limit_usage WHERE user_id = '"+user+"'"); got != want {
			t.Errorf("the usage of %s is %d requests, want %d", user, got, want)
		}
		if got := queryInt(t, dsn, "SELECT sum(refused) FROM rate_limit_usage WHERE user_id = '"+user+"'"); got != refused[user] {
			t.Errorf("%s was refused %d times, want %d", user, got, refused[user])
		}
	}
	for what, sql := range map[string]string{
		"decisions were dropped":          "SELECT sum(dropped) FROM rate_limit_writers",
		"rows contain a query":            "SELECT count(*) FROM rate_limit_audit WHERE path LIKE '%secret%'",
		"rows are of no known proxy":      "SELECT count(*) FROM rate_limit_audit a WHERE NOT EXISTS (SELECT FROM rate_limit_writers w WHERE w.node = a.node)",
		"blocked requests have no rule":   "SELECT count(*) FROM rate_limit_audit WHERE decision = 'blocked' AND prefix <> 'rule/closed'",
		"limited requests have no status": "SELECT count(*) FROM rate_limit_audit WHERE decision = 'limited' AND status IS DISTINCT FROM 429",
	} {
		if n := queryInt(t, dsn, sql); n != 0 {
			t.Errorf("%d %s", n, what)
		}
	}
	// The two Caddies of this host have no node_name, so they share a name.
	if n := queryInt(t, dsn, "SELECT count(DISTINCT node) FROM rate_limit_audit"); n != 2 {
		t.Errorf("the audit log has %d names of proxies, want 2", n)
	}
	if n := queryInt(t, dsn, "SELECT count(*) FROM rate_limit_writers"); n != int64(len(proxies)) {
		t.Errorf("%d proxies have written the history, want %d", n, len(proxies))
	}
}

// TestTheHistoryOverAnOutage stops Postgres under load, for longer than the proxy can keep all rows. The requests are answered
// as on_error says, the memory stays bounded, and exactly the dropped decisions are missing.
func TestTheHistoryOverAnOutage(t *testing.T) {
	const pending = 20000 // rows that a proxy keeps, see history.Settings
	server := cluster.Private(t, cluster.Options{})
	dsn := server.DSN("postgres")
	execute(t, dsn, schema.File)
	c := startCaddy(t, dsn, caddyRoute{"/*", []string{limit("web", "limit 1000000 1h", "key {header.X-Key}", "on_error allow", "audit all")}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan *harness.Result, 1)
	var answered atomic.Int64
	go func() {
		done <- harness.Run(ctx, harness.Load{Clients: 64, Every: 250 * time.Microsecond,
			Request:  func(i int) *http.Request { return harness.Get(c.url+"/", "X-Key", fmt.Sprint("key-", i)) },
			Answered: func(int, harness.Reply) { answered.Add(1) },
		})
	}()
	await(t, "the first rows", func() bool { return queryInt(t, dsn, "SELECT count(*) FROM rate_limit_audit") > 1000 })
	before, _ := memory(t, c.Process)
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	down := answered.Load()
	for answered.Load() <= down+pending*5/4 { // a request without an answer ends, too
		time.Sleep(10 * time.Millisecond)
	}
	if err := server.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	const allowed = "SELECT count(*) FROM rate_limit_audit WHERE decision = 'allowed' AND time > now() - interval '1 second'"
	await(t, "rows of new decisions", func() bool { return queryInt(t, dsn, allowed) > 0 })
	cancel()
	r := <-done
	t.Logf("the load: %v", r)
	if err := r.Err(); err != nil || r.Status[http.StatusOK] != r.Sent {
		t.Errorf("the load: %v, %v", r, err)
	}
	_, most := memory(t, c.Process)
	await(t, "the rest of the history", func() bool {
		return queryInt(t, dsn, "SELECT (SELECT sum(count) FROM rate_limit_audit) + (SELECT sum(dropped) FROM rate_limit_writers)") >= int64(r.Sent)
	})
	// The process writes the last metrics when it ends.
	if err := c.Stop(); err != nil {
		t.Error(err)
	}
	rows := queryInt(t, dsn, "SELECT sum(count) FROM rate_limit_audit")
	dropped := queryInt(t, dsn, "SELECT sum(dropped) FROM rate_limit_writers")
	t.Logf("%d rows, %d dropped, %d MB before, %d MB at most", rows, dropped, before>>20, most>>20)
	if rows+dropped != int64(r.Sent) {
		t.Errorf("of %d requests, the audit log has %d, and %d were dropped", r.Sent, rows, dropped)
	}
	if dropped == 0 {
		t.Error("nothing was dropped, so the memory has no bound")
	}
	if n := queryInt(t, dsn, "SELECT sum(requests) FROM rate_limit_metrics WHERE granularity = 'minute'"); n != int64(r.Sent) {
		t.Errorf("the metrics have %d of %d requests", n, r.Sent)
	}
	if most > before+64<<20 {
		t.Errorf("Caddy took %d MB at most, and %d MB before", most>>20, before>>20)
	}
}
