package integration

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// flightUpstream is an upstream that knows how many requests run, by the first segment of their paths.
type flightUpstream struct {
	url  string
	hold time.Duration

	mu      sync.Mutex
	running map[string]int
	total   int
	served  int
	allowed time.Time // until when more than most may run
	most    int
	wrong   []string
	full    time.Time // when most ran last
}

func startFlightUpstream(t *testing.T, most int, hold time.Duration) *flightUpstream {
	t.Helper()
	u := &flightUpstream{running: map[string]int{}, most: most, hold: hold}
	server := httptest.NewServer(http.HandlerFunc(u.serve))
	t.Cleanup(server.Close)
	u.url = server.URL
	return u
}

func (u *flightUpstream) serve(w http.ResponseWriter, r *http.Request) {
	from := strings.Split(r.URL.Path, "/")[1]
	u.mu.Lock()
	u.running[from]++
	u.total++
	now := time.Now()
	if u.total == u.most {
		u.full = now
	}
	if u.total > u.most && now.After(u.allowed) {
		u.wrong = append(u.wrong, fmt.Sprintf("%s %d: %v", now.Format("05.000"), u.total, u.running))
	}
	u.mu.Unlock()
	select {
	case <-time.After(u.hold):
	case <-r.Context().Done():
	}
	u.mu.Lock()
	u.running[from]--
	u.total--
	u.served++
	u.mu.Unlock()
}

// await waits until something holds of the upstream.
func (u *flightUpstream) await(t *testing.T, most time.Duration, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(most); ; time.Sleep(time.Millisecond) {
		u.mu.Lock()
		done := holds()
		u.mu.Unlock()
		if done {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", most, what)
		}
	}
}

// Two hundred clients of four proxies never run more than five requests of a key at once, while one of the
// proxies is killed and another one is stopped for a while, except in the second after it goes on. The slots of
// the one that was killed can be used again within eleven seconds. With PG_RATELIMIT_TEST_LONG it takes a minute.
func TestRequestsInFlightNeverExceedTheLimit(t *testing.T) {
	const limit = 5
	lasts, stopped := 16*time.Second, 11*time.Second
	if os.Getenv("PG_RATELIMIT_TEST_LONG") != "" {
		lasts, stopped = time.Minute, 20*time.Second
	}
	dsn := cluster.Open(t)
	u := startFlightUpstream(t, limit, 100*time.Millisecond)
	inCaddy := fmt.Sprintf("route {\n\tpg_ratelimit flight {\n\t\ttimeout 30s\n\t\ton_error deny\n\t\tkey everybody\n\t\talgorithm in_flight\n\t\tlimit %d\n\t}\n\treverse_proxy %s\n}", limit, strings.TrimPrefix(u.url, "http://"))
	inTraefik := object{"dsn": dsn, "timeout": "30s", "onError": "deny", "prefix": "flight", "key": "everybody", "algorithm": "in_flight", "limit": fmt.Sprint(limit)}
	urls := map[string]string{}
	caddies := map[string]*caddy{}
	for _, name := range []string{"caddy", "killed"} {
		address := harness.FreeAddress(t)
		caddies[name] = launchConfig(t, buildCaddy(t), address, caddyfile(address, dsn, []caddyRoute{{"/*", []string{inCaddy}}}))
		caddies[name].AwaitAddress(t, address)
		urls[name] = caddies[name].url
	}
	tr, sleeper := startTraefik(t, []route{{"/", u.url, inTraefik}}), startTraefik(t, []route{{"/", u.url, inTraefik}})
	urls["traefik"], urls["sleeper"] = tr.url, sleeper.url

	ctx, end := context.WithCancel(context.Background())
	var clients sync.WaitGroup
	var mu sync.Mutex
	statuses := map[string]int{}
	for name, url := range urls {
		for range 50 {
			clients.Go(func() {
				client := &http.Client{Transport: &http.Transport{}}
				defer client.CloseIdleConnections()
				for ctx.Err() == nil {
					request, _ := http.NewRequestWithContext(ctx, http.MethodGet, url+"/"+name, nil)
					status := "no answer"
					if response, err := client.Do(request); err == nil {
						status = response.Status
						if status[:3] == "429" && response.Header.Get("Retry-After") != "1" {
							t.Errorf("Retry-After %q", response.Header.Get("Retry-After"))
						}
						response.Body.Close()
					}
					mu.Lock()
					statuses[name+" "+status]++
					mu.Unlock()
					time.Sleep(250 * time.Millisecond)
				}
			})
		}
	}
	began := time.Now()
	for name := range urls {
		u.await(t, time.Minute, "a request of "+name, func() bool { return u.running[name] > 0 })
	}
	time.Sleep(time.Second)
	u.await(t, time.Minute, "a request to kill", func() bool { return u.running["killed"] > 0 })
	killed := time.Now()
	if err := caddies["killed"].Kill(); err != nil {
		t.Error(err)
	}
	u.await(t, time.Minute, "a request to stop", func() bool { return u.running["sleeper"] > 0 })
	if err := syscall.Kill(sleeper.PID(), syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	slept := time.Now()
	time.Sleep(time.Until(killed.Add(11 * time.Second)))
	u.await(t, time.Second, "all slots in use, though one proxy was killed and one sleeps", func() bool { return u.full.After(killed.Add(10 * time.Second)) })
	time.Sleep(time.Until(slept.Add(stopped)))
	u.mu.Lock()
	u.allowed = time.Now().Add(time.Second)
	served := u.served
	u.mu.Unlock()
	if err := syscall.Kill(sleeper.PID(), syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	u.await(t, 10*time.Second, "the stopped proxy to go on", func() bool { return u.running["sleeper"] > 0 && time.Now().After(u.allowed) })
	time.Sleep(time.Until(began.Add(lasts)))
	end()
	clients.Wait()

	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.wrong) > 0 {
		t.Errorf("more than %d requests ran at once, %d times: %s", limit, len(u.wrong), strings.Join(u.wrong[:min(20, len(u.wrong))], "\n"))
	}
	t.Logf("%d requests in %v, %d before the stopped proxy went on: %v", u.served, time.Since(began), served, statuses)
	for name := range statuses {
		if !strings.HasSuffix(name, " 200 OK") && !strings.HasSuffix(name, " 429 Too Many Requests") && !strings.HasSuffix(name, "no answer") && !strings.HasPrefix(name, "sleeper ") {
			t.Errorf("%d answers %s", statuses[name], name)
		}
	}
}
