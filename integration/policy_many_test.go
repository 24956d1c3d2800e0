package integration

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/procfs"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// memory returns the memory that a process takes now, and the most that it has taken, in bytes.
func memory(t *testing.T, p *harness.Process) (now, most uint64) {
	t.Helper()
	process, err := procfs.NewProc(p.PID())
	if err != nil {
		t.Fatal(err)
	}
	status, err := process.NewStatus()
	if err != nil {
		t.Fatal(err)
	}
	return status.VmRSS, status.VmHWM
}

// TestAMillionUsersChangeAtOnce moves a million users to another tier in one statement, and then
// 20,000 users one by one in one transaction. The proxies serve meanwhile, in bounded memory,
// and obey within five seconds.
func TestAMillionUsersChangeAtOnce(t *testing.T) {
	const users, active, most = 1000000, 5000, 5 * time.Second
	dsn := policyDatabase(t, people+fmt.Sprintf(`
		INSERT INTO rate_limit_users (user_id, tier) SELECT 'u' || i, 'free' FROM generate_series(1, %d) AS i;
		SELECT rate_limit_rule('closed', action => 'block', tiers => '{pro}');`, users))
	proxies := startGoverned(t, dsn, []string{"timeout 30s", "on_error deny"}, decideAlways(object{}))
	var urls []string
	for _, p := range proxies {
		urls = append(urls, p.url)
	}
	request := func(i int) *http.Request {
		return harness.Get(urls[i%len(urls)]+"/", "X-User", fmt.Sprint("u", 1+i/len(urls)%active))
	}
	r := harness.Run(t.Context(), harness.Load{Clients: 48, Requests: active * len(urls), Request: request})
	if err := r.Err(); err != nil || r.Status[http.StatusOK] != r.Sent {
		t.Fatalf("%v, %v", r, err)
	}
	before := make([]uint64, len(proxies))
	for i, p := range proxies {
		before[i], _ = memory(t, p.Process)
	}
	ctx, stop := context.WithCancel(t.Context())
	load := make(chan *harness.Result, 1)
	go func() {
		load <- harness.Run(ctx, harness.Load{Clients: 48, Every: 4 * time.Millisecond, Request: request})
	}()

	watchers := watch(t, urls, "X-User", "alice")
	took := changeWithin(t, dsn, "UPDATE rate_limit_users SET tier = 'pro'", watchers, http.StatusOK, http.StatusForbidden, most)
	t.Logf("a million users in one statement: obeyed after %v", took)
	took = changeWithin(t, dsn, `DO $$ BEGIN
		FOR i IN 1..20000 LOOP UPDATE rate_limit_users SET tier = 'free' WHERE user_id = 'u' || i; END LOOP;
		UPDATE rate_limit_users SET tier = 'free' WHERE user_id = 'alice'; END $$`, watchers, http.StatusForbidden, http.StatusOK, most)
	t.Logf("20,000 users in one transaction: obeyed after %v", took)

	stop()
	r = <-load
	if err := r.Err(); err != nil || r.Status[http.StatusOK] == 0 || r.Status[http.StatusForbidden] == 0 || r.Status[http.StatusOK]+r.Status[http.StatusForbidden] != r.Sent {
		t.Errorf("the load: %v, %v", r, err)
	}
	t.Logf("the load: %v", r)
	if r.Slowest > most {
		t.Errorf("a request took %v", r.Slowest)
	}
	for i, p := range proxies {
		for user, want := range map[string]int{"u20000": http.StatusOK, "u20001": http.StatusForbidden, "u1000000": http.StatusForbidden} {
			if a := harness.Ask(t, harness.Get(p.url+"/", "X-User", user)); a.Status != want {
				t.Errorf("%s answers %s with %d, want %d", p.url, user, a.Status, want)
			}
		}
		const allowed = 64 << 20
		_, highest := memory(t, p.Process)
		t.Logf("%s: %d MB before, %d MB at most", p.url, before[i]>>20, highest>>20)
		if highest > before[i]+allowed {
			t.Errorf("%s took %d MB at most, want at most %d MB more than before", p.url, highest>>20, allowed>>20)
		}
	}
}
