package integration

import (
	"context"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// watcher asks a proxy again and again as one sender, until it is stopped.
type watcher struct {
	url     string
	headers []string

	mu      sync.Mutex
	replies []reply // guarded by mu
}

// reply is an answer to a watcher, and when it asked and got the answer.
type reply struct {
	status     int
	asked, got time.Time
}

// watch starts watchers of all proxies. They end with the test.
func watch(t *testing.T, urls []string, headers ...string) []*watcher {
	t.Helper()
	return watchFrom(t, "127.0.0.1", urls, headers...)
}

// watchFrom starts watchers with an address of this machine.
func watchFrom(t *testing.T, from string, urls []string, headers ...string) []*watcher {
	t.Helper()
	dialer := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	var all []*watcher
	for _, url := range urls {
		w := &watcher{url: url + "/", headers: headers}
		all = append(all, w)
		running.Go(func() {
			client := &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext},
				Timeout: time.Minute}
			defer client.CloseIdleConnections()
			for ctx.Err() == nil {
				asked := time.Now()
				response, err := client.Do(harness.Get(w.url, w.headers...))
				if err != nil {
					t.Error(err)
					return
				}
				_ = response.Body.Close()
				w.mu.Lock()
				w.replies = append(w.replies, reply{response.StatusCode, asked, time.Now()})
				w.mu.Unlock()
				time.Sleep(5 * time.Millisecond) // leaves the processor to the proxies
			}
		})
	}
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return all
}

// answersOf returns the number of answers by status that watchers have got since the last call.
func answersOf(watchers []*watcher) map[int]int {
	status := map[int]int{}
	for _, w := range watchers {
		w.mu.Lock()
		for _, r := range w.replies {
			status[r.status]++
		}
		w.replies = w.replies[:0]
		w.mu.Unlock()
	}
	return status
}

// await waits until the watcher has an answer to a request that it sent after a time.
func (w *watcher) await(t *testing.T, after time.Time) {
	t.Helper()
	await(t, "an answer of "+w.url, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.replies) > 0 && w.replies[len(w.replies)-1].asked.After(after)
	})
}

// awaitStatus waits until the last answer has a status.
func (w *watcher) awaitStatus(t *testing.T, status int) {
	t.Helper()
	await(t, "the new answer of "+w.url, func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return w.replies[len(w.replies)-1].status == status
	})
}

// change runs SQL that turns the answers of all watchers from one status into another, and
// returns how long each proxy took to obey. An answer that is wrong before the change or after
// a proxy has obeyed fails the test, and so does a proxy that takes longer than a second.
func change(t *testing.T, dsn, sql string, watchers []*watcher, before, after int) (took []time.Duration) {
	t.Helper()
	const most = time.Second
	for _, w := range watchers {
		w.await(t, time.Now())
	}
	begun := time.Now()
	cluster.Execute(t, dsn, sql)
	committed := time.Now()
	for _, w := range watchers {
		w.await(t, committed.Add(most+100*time.Millisecond))
		w.awaitStatus(t, after)
	}
	for _, w := range watchers {
		w.mu.Lock()
		var obeyed time.Time      // when the first answer with the new policy came
		var slowest time.Duration // how late the machine is: a busy one delays polls as well
		for _, r := range w.replies {
			slowest = max(slowest, r.got.Sub(r.asked))
			switch {
			case r.got.Before(begun):
				if r.status != before {
					t.Errorf("%s: %s answered %d before the change", sql, w.url, r.status)
				}
			case r.status == after:
				if obeyed.IsZero() {
					obeyed = r.got
				}
			case r.status != before || !obeyed.IsZero() && r.asked.After(obeyed):
				t.Errorf("%s: %s answered %d, %v after the change", sql, w.url, r.status,
					r.asked.Sub(committed))
			}
		}
		w.replies = w.replies[:0]
		w.mu.Unlock()
		delay := obeyed.Sub(committed)
		if delay > most+4*slowest {
			t.Errorf("%s: %s obeyed after %v, want %v at most (the slowest answer took %v)", sql, w.url,
				delay, most, slowest)
		}
		took = append(took, delay)
	}
	return took
}

// underLoad sends requests of another user to the proxies until the test ends, and expects
// that all pass.
func underLoad(t *testing.T, urls []string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan *harness.Result, 1)
	go func() {
		done <- harness.Run(ctx, harness.Load{Clients: 32, Every: 4 * time.Millisecond,
			Request: func(i int) *http.Request {
				return harness.Get(urls[i%len(urls)]+"/", "X-User", "carol")
			}})
	}()
	t.Cleanup(func() {
		cancel()
		r := <-done
		if err := r.Err(); err != nil || r.Status[http.StatusOK] != r.Sent {
			t.Errorf("the load: %v, %v", r, err)
		}
	})
}

// TestProxiesObeyWithinASecond changes keys, bans and limits by SQL.
func TestProxiesObeyWithinASecond(t *testing.T) {
	key, insert := newKey(t, 1, "alice")
	dsn := policyDatabase(t, people+insert+`SELECT rate_limit_rule('plan', tiers => '{free,pro}',
		algorithm => 'fixed_window', per_hour => 1000000);`)
	urls := governedProxies(t, dsn)
	underLoad(t, urls)
	byKey := watch(t, urls, "Authorization", "Bearer "+key)
	byUser := watch(t, urls, "X-User", "bob")
	var took []time.Duration
	took = append(took, change(t, dsn, "UPDATE rate_limit_api_keys SET revoked_at = now()", byKey, 200,
		401)...)
	took = append(took, change(t, dsn, "UPDATE rate_limit_api_keys SET revoked_at = NULL", byKey, 401,
		200)...)
	took = append(took, change(t, dsn, "INSERT INTO rate_limit_bans (user_id) VALUES ('bob')", byUser, 200,
		403)...)
	took = append(took, change(t, dsn, "DELETE FROM rate_limit_bans", byUser, 403, 200)...)
	took = append(took, change(t, dsn, "SELECT rate_limit_rule('plan', per_hour => 1)", byUser, 200, 429)...)
	took = append(took, change(t, dsn, "SELECT rate_limit_rule('plan', per_hour => 1000000)", byUser, 429,
		200)...)
	slices.Sort(took)
	median := took[len(took)/2]
	t.Logf("%d changes at a proxy: obeyed after %v in the median, %v at most", len(took), median,
		took[len(took)-1])
}
