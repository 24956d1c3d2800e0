package integration

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
)

// openProxies starts a Caddy and a Traefik that admit requests with invented keys, and requests without a
// decision.
func openProxies(t *testing.T, dsn, timeout string) (urls []string) {
	t.Helper()
	limit := object{"timeout": timeout, "policy": object{"apiKey": "{header.X-Api-Key}",
		"user": "{header.X-User}", "unknownKey": "anonymous"}}
	for _, p := range startBoth(t, dsn, route{"/", "", limit}) {
		urls = append(urls, p.url)
	}
	awaitPolicyApplied(t, dsn, 2)
	return urls
}

// clientFrom returns a client that sends from an address of the loopback network.
func clientFrom(address string) *http.Client {
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	return &http.Client{Timeout: 30 * time.Second,
		Transport: &http.Transport{DialContext: dialer.DialContext}}
}

func statusOf(t *testing.T, client *http.Client, r *http.Request) int {
	t.Helper()
	answer, err := harness.AskBy(client, r)
	if err != nil {
		t.Error(err)
	}
	return answer.Status
}

func randomKey(t *testing.T) string {
	t.Helper()
	key, err := policy.NewKey()
	if err != nil {
		t.Error(err)
	}
	return key
}

// lockKeys locks the table of API keys until unlock is called.
func lockKeys(t *testing.T, dsn string) (unlock func()) {
	t.Helper()
	conn := cluster.Connect(t, dsn)
	if _, err := conn.Exec(t.Context(), "BEGIN; LOCK TABLE rate_limit_api_keys"); err != nil {
		t.Fatal(err)
	}
	return func() { _ = conn.Close(context.Background()) }
}

// An invented key or user opens nothing that is closed to all senders: with the database, while the table of
// API keys is locked, and without the database.
func TestAnUnknownKeyOpensNothing(t *testing.T) {
	server := cluster.Private(t, cluster.Options{})
	dsn := server.DSN("postgres")
	cluster.Execute(t, dsn, schema.File)
	banned, insert := policytest.NewKey(t, 7, "alice")
	ofBanned, insertOther := policytest.NewKey(t, 8, "mallory")
	cluster.Execute(t, dsn, policytest.People+`INSERT INTO rate_limit_users (user_id, tier)
		VALUES ('mallory', 'free');`+insert+insertOther+`
		SELECT rate_limit_rule('closed', action => 'block', paths => '{/closed/*}');
		SELECT rate_limit_rule('members', action => 'block', paths => '{/members}', tiers => '{anonymous}');
		SELECT rate_limit_rule('shared', count_by => '{all}', paths => '{/shared/*}', per_hour => 5);
		INSERT INTO rate_limit_bans (network) VALUES ('127.0.0.2');
		INSERT INTO rate_limit_bans (user_id) VALUES ('mallory');
		INSERT INTO rate_limit_bans (key_id) VALUES (7);`)
	urls := openProxies(t, dsn, "1s")
	shut := clientFrom("127.0.0.2")
	plain := clientFrom("127.0.0.1")
	check := func(state string) {
		t.Helper()
		refuseAll(t, state, func() (refused []asked) {
			for _, url := range urls {
				refused = append(refused,
					asked{plain, harness.Get(url+"/closed/x", "X-Api-Key", randomKey(t))},
					asked{plain, harness.Get(url+"/closed/x", "X-User", "nobody knows "+randomKey(t))},
					asked{shut, harness.Get(url+"/", "X-Api-Key", randomKey(t))},
					asked{plain, harness.Get(url+"/", "X-User", "mallory")},
					asked{plain, harness.Get(url+"/", "X-Api-Key", banned)},
					asked{plain, harness.Get(url+"/", "X-Api-Key", ofBanned)})
			}
			return refused
		})
	}
	check("with the database")

	unlock := lockKeys(t, dsn)
	check("keys locked")
	checkLimitOfAll(t, plain, urls)
	unlock()

	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	check("no database")
	for _, url := range urls {
		// What depends on the sender follows on_error.
		got := statusOf(t, plain, harness.Get(url+"/members", "X-Api-Key", randomKey(t)))
		if got != http.StatusOK {
			t.Errorf("%s, a path that is closed to one tier: status %d, want 200", url, got)
		}
	}
}

// asked is a request from an address.
type asked struct {
	client  *http.Client
	request *http.Request
}

// refuseAll sends requests ten times, all concurrently, and fails the test unless each response is 403.
func refuseAll(t *testing.T, state string, requests func() []asked) {
	t.Helper()
	var group sync.WaitGroup
	n := 0
	for range 10 {
		for _, a := range requests() {
			n++
			group.Go(func() {
				if status := statusOf(t, a.client, a.request); status != http.StatusForbidden {
					t.Errorf("%s, %s %v: %d, want 403", state, a.request.URL, a.request.Header, status)
				}
			})
		}
	}
	group.Wait()
	t.Logf("%s: %d requests", state, n)
}

// checkLimitOfAll sends requests with invented keys to a path with a limit of 5 for all senders. The
// counter of the limit is not locked.
func checkLimitOfAll(t *testing.T, plain *http.Client, urls []string) {
	t.Helper()
	var passed atomic.Int64
	var group sync.WaitGroup
	for i := range 20 {
		group.Go(func() {
			request := harness.Get(urls[i%2]+"/shared/x", "X-Api-Key", randomKey(t))
			if statusOf(t, plain, request) == http.StatusOK {
				passed.Add(1)
			}
		})
	}
	group.Wait()
	if n := passed.Load(); n != 5 {
		t.Errorf("keys locked: %d requests passed a limit of 5 for all, want 5", n)
	}
}
