package integration

import (
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
)

// clientFrom returns a client that sends from an address of the loopback network.
func clientFrom(address string) *http.Client {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	return &http.Client{Timeout: 30 * time.Second,
		Transport: &http.Transport{DialContext: dialer.DialContext}}
}

func statusOf(t *testing.T, client *http.Client, r *http.Request) int {
	t.Helper()
	response, err := harness.AskBy(client, r)
	if err != nil {
		t.Error(err)
	}
	return response.Status
}

func randomKey(t *testing.T) string {
	t.Helper()
	key, err := policy.NewKey()
	if err != nil {
		t.Error(err)
	}
	return key
}

// An invented key opens nothing while keys cannot be looked up. Both proxies refuse requests that are blocked
// for all senders, and users that are banned, and charge the limits that all senders share. If a rule depends
// on the sender, on_error decides. Package policy tests each kind of rule and ban.
func TestAnUnknownKeyOpensNothing(t *testing.T) {
	server := cluster.Private(t, cluster.Options{})
	dsn := server.DSN("postgres")
	cluster.Execute(t, dsn, schema.File+policytest.People+`
		SELECT rate_limit_rule('closed', action => 'block', paths => '{/closed/*}');
		SELECT rate_limit_rule('members', action => 'block', paths => '{/members}', tiers => '{anonymous}');
		SELECT rate_limit_rule('shared', count_by => '{all}', paths => '{/shared/*}', per_hour => 5);
		INSERT INTO rate_limit_bans (user_id) VALUES ('bob')`)
	proxies := startBoth(t, dsn, route{path: "/", limit: object{"timeout": "1s", "policy": object{
		"apiKey": "{header.X-Api-Key}", "user": "{header.X-User}", "unknownKey": "anonymous"}}})
	awaitPolicyApplied(t, dsn, 2)
	_, err := cluster.Connect(t, dsn).Exec(t.Context(), "BEGIN; LOCK TABLE rate_limit_api_keys")
	if err != nil {
		t.Fatal(err)
	}
	r := harness.Run(t.Context(), harness.Load{Clients: 20, Requests: 20, Request: func(i int) *http.Request {
		return harness.Get(proxies[i%2].url+"/shared/x", "X-Api-Key", randomKey(t))
	}})
	if r.Status[http.StatusOK] != 5 || r.Status[http.StatusTooManyRequests] != 15 {
		t.Errorf("with locked keys, a limit of 5 for all senders: statuses %v, want 200 five times", r)
	}
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ path, header, value, want string }{
		{path: "/closed/x", header: "X-Api-Key", value: randomKey(t), want: "403"},
		{path: "/", header: "X-User", value: "bob", want: "403"},
		{path: "/members", header: "X-Api-Key", value: randomKey(t), want: "200"},
	} {
		for _, p := range proxies {
			if got := statusesOf(t, 1, p.url+c.path, c.header, c.value); got != c.want {
				t.Errorf("without the database, %s%s with %s: status %s, want %s", p.url, c.path, c.header,
					got, c.want)
			}
		}
	}
}
