package traefikplugin

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// The counters, the policy and the history can be in three databases, which are closed after the middleware.
func TestThePolicyAndTheHistoryCanBeOnOtherServers(t *testing.T) {
	counters, history := cluster.Open(t), cluster.Open(t)
	policy := withPolicy(t, people+`SELECT rate_limit_rule('plan', tiers => '{free}', algorithm => 'fixed_window', per_hour => 2);`)
	p := newProcess(time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	c := CreateConfig()
	c.Other["dsn"], c.Other["timeout"], c.Other["onError"], c.Other["audit"], c.Other["nodeName"] = counters, "10s", "deny", "all", "here"
	c.Policy = []Settings{{"dsn": policy, "user": "{header.X-User}"}}
	c.History = []History{{Other: Settings{"dsn": history}}}
	h := open(t, ctx, p, &served{}, c)
	for _, want := range []int{http.StatusOK, http.StatusOK, http.StatusTooManyRequests, http.StatusTooManyRequests} {
		if w := send(h, "/", "X-User", "alice"); w.Code != want {
			t.Fatalf("status %d, want %d: %s", w.Code, want, w.Body)
		}
	}
	cluster.Execute(t, policy, "INSERT INTO rate_limit_bans (user_id) VALUES ('alice')")
	await.Within(t, time.Minute, "the ban", func() bool { return send(h, "/", "X-User", "alice").Code == http.StatusForbidden })
	for _, c := range []struct {
		what, dsn, sql string
		want           int
	}{
		{"counters in their database", counters, "SELECT count(*) FROM rate_limit_ephemeral WHERE prefix LIKE 'rule/plan/%' AND key = 'alice'", 1},
		{"other tables beside the counters", counters, "SELECT count(*) FROM pg_class WHERE relname IN ('rate_limit_rules', 'rate_limit_audit')", 0},
		{"counters beside the policy", policy, "SELECT count(*) FROM rate_limit_ephemeral", 0},
		{"other tables beside the history", history, "SELECT count(*) FROM pg_class WHERE relname IN ('rate_limit_rules', 'rate_limit_ephemeral', 'rate_limit_nodes')", 0},
	} {
		if got := number(t, c.dsn, c.sql); got != c.want {
			t.Errorf("%d %s, want %d", got, c.what, c.want)
		}
	}
	await.Within(t, time.Minute, "what the proxy obeys, in the registry of the policy", func() bool {
		return number(t, policy, "SELECT count(*) FROM rate_limit_nodes WHERE node = 'here' AND applied_seq > 0") == 1
	})
	h.use.After = 0 // no request waits
	cancel()
	await.Within(t, time.Minute, "all databases are released", func() bool { return len(p.proxy.Shared()) == 0 })
	await.Within(t, time.Minute, "the store is closed", func() bool { return isClosed(h) }) // after the history
	if n := number(t, history, "SELECT sum(count) FROM rate_limit_audit WHERE prefix = 'rule/plan' AND decision = 'allowed'"); n != 2 {
		t.Errorf("the audit log has %d requests that passed, want 2", n)
	}
}

// number returns the number that a query returns.
func number(t *testing.T, dsn, sql string) int {
	t.Helper()
	conn := cluster.Watch(t, context.Background(), dsn)
	defer conn.Close(context.Background())
	n := 0
	if err := conn.QueryRow(context.Background(), sql).Scan(&n); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return n
}
