package integration

import (
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
)

// askers send requests to proxies until the test ends, and count the responses.
type askers struct {
	mu        sync.Mutex
	responses map[string]map[int]int // by kind and status
}

// askOften starts a goroutine for each kind of request, which sends one request at a time.
func askOften(t *testing.T, kinds map[string]func() int) *askers {
	t.Helper()
	s := &askers{responses: map[string]map[int]int{}}
	var running sync.WaitGroup
	stop := make(chan struct{})
	for kind, ask := range kinds {
		running.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(10 * time.Millisecond): // leaves the processor to the proxies
				}
				status := ask()
				s.mu.Lock()
				if s.responses[kind] == nil {
					s.responses[kind] = map[int]int{}
				}
				s.responses[kind][status]++
				s.mu.Unlock()
			}
		})
	}
	t.Cleanup(func() {
		close(stop)
		running.Wait()
	})
	return s
}

// take returns the counts since the last call.
func (s *askers) take() map[string]map[int]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	responses := s.responses
	s.responses = map[string]map[int]int{}
	return responses
}

// requestsAsUser returns requests of a user, one kind for each proxy.
func requestsAsUser(t *testing.T, urls []string, user string) map[string]func() int {
	kinds := map[string]func() int{}
	for _, url := range urls {
		kinds[user+" at "+url] = func() int {
			return statusOf(t, http.DefaultClient, harness.Get(url+"/", "X-User", user))
		}
	}
	return kinds
}

// underLoad sends requests of another user to the proxies until the test ends. All must pass.
func underLoad(t *testing.T, urls []string) {
	t.Helper()
	load := askOften(t, requestsAsUser(t, urls, "carol"))
	t.Cleanup(func() {
		for kind, responses := range load.take() {
			if len(responses) != 1 || responses[http.StatusOK] == 0 {
				t.Errorf("the load of %s: statuses %v, want 200 only", kind, responses)
			}
		}
	})
}

// change runs SQL that changes the status of a sender's requests from before to after, see changeOf.
func change(t *testing.T, dsn, sql string, urls []string, before, after int, headers ...string) {
	t.Helper()
	changeOf(t, dsn, sql, urls, before, after, func(url string) *http.Request {
		return harness.Get(url+"/", headers...)
	})
}

// changeOf runs SQL that changes the status of requests from before to after. The test fails if a proxy takes
// longer than a second to apply the change, or if a request gets another status.
func changeOf(t *testing.T, dsn, sql string, urls []string, before, after int,
	request func(url string) *http.Request) {
	t.Helper()
	const maxDelay = time.Second
	late := lateness()
	cluster.Execute(t, dsn, sql)
	committed := time.Now()
	var proxies sync.WaitGroup
	took := make([]time.Duration, len(urls))
	for i, url := range urls {
		proxies.Go(func() {
			for applied := 0; applied < 20 && !t.Failed(); time.Sleep(5 * time.Millisecond) {
				status := statusOf(t, http.DefaultClient, request(url))
				if status == after {
					applied++
				} else if status != before || applied > 0 {
					t.Errorf("%s: %s: status %d %v after the change, want %d, then %d", sql, url, status,
						time.Since(committed), before, after)
				}
				if applied == 1 {
					took[i] = time.Since(committed)
				}
			}
		})
	}
	proxies.Wait()
	busy := late()
	t.Logf("%s: applied after %v", sql, took)
	for i, url := range urls {
		if took[i] > maxDelay+4*busy {
			t.Errorf("%s: %s applied it after %v, want %v at most on a machine that is %v late", sql, url,
				took[i], maxDelay, busy)
		}
	}
}

// Proxies apply a change of a key, a ban or a limit by SQL within a second.
func TestProxiesObeyWithinASecond(t *testing.T) {
	key, insert := policytest.NewKey(t, 1, "alice")
	dsn := policytest.Open(t, policytest.People+insert+`SELECT rate_limit_rule('plan', tiers => '{free,pro}',
		algorithm => 'fixed_window', per_hour => 1000000);`)
	urls := governedBy(t, dsn, decideAlways(object{}))
	underLoad(t, urls)
	bearer, user := []string{"Authorization", "Bearer " + key}, []string{"X-User", "bob"}
	change(t, dsn, "SELECT 1", urls, 200, 200, bearer...)
	change(t, dsn, "UPDATE rate_limit_api_keys SET revoked_at = now()", urls, 200, 401, bearer...)
	change(t, dsn, "UPDATE rate_limit_api_keys SET revoked_at = NULL", urls, 401, 200, bearer...)
	change(t, dsn, "INSERT INTO rate_limit_bans (user_id) VALUES ('bob')", urls, 200, 403, user...)
	change(t, dsn, "DELETE FROM rate_limit_bans", urls, 403, 200, user...)
	change(t, dsn, "SELECT rate_limit_rule('plan', per_hour => 1)", urls, 200, 429, user...)
	change(t, dsn, "SELECT rate_limit_rule('plan', per_hour => 1000000)", urls, 429, 200, user...)
}
