package integration

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/page"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// openPage opens the page of a database, as a browser does. It returns the last JSON of a section.
func openPage(t *testing.T, dsn string) (section func(name string, into any) bool) {
	t.Helper()
	s, err := page.New(page.Options{DSN: dsn})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(s)
	t.Cleanup(func() {
		s.Close()
		server.Close()
	})
	response, err := http.Get(server.URL + "/api/events")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = response.Body.Close() })
	var mu sync.Mutex
	last := map[string]string{}
	go func() {
		lines := bufio.NewScanner(response.Body)
		lines.Buffer(nil, 1<<24)
		for name := ""; lines.Scan(); {
			if event, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
				name = event
			} else if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
				mu.Lock()
				last[name] = data
				mu.Unlock()
			}
		}
	}()
	t.Cleanup(func() {
		mu.Lock()
		defer mu.Unlock()
		if t.Failed() {
			t.Logf("the page shows %v", last)
		}
	})
	return func(name string, into any) bool {
		mu.Lock()
		defer mu.Unlock()
		return json.Unmarshal([]byte(last[name]), into) == nil
	}
}

// TestThePageHasTheSumsOfTheLoad sends a known load through a Caddy and a Traefik. Each second of the load is on the
// page within seconds: the heaviest keys, and how many requests passed and were refused.
func TestThePageHasTheSumsOfTheLoad(t *testing.T) {
	const requests, quota = 4000, 300
	dsn := cluster.Open(t)
	urls := bothProxies(t, dsn, startBackend(t), fmt.Sprintf("prefix load\nkey {header.X-Key}\nlimit %d 1h\nalgorithm fixed_window\naudit denied", quota),
		object{"prefix": "load", "key": "{header.X-Key}", "limit": fmt.Sprintf("%d 1h", quota), "algorithm": "fixed_window", "audit": "denied"})
	section := openPage(t, dsn)
	await(t, "the page to know both proxies", func() bool {
		var p struct {
			Proxies []struct {
				Kind *string
				Now  *struct{}
			}
		}
		return section("proxies", &p) && len(p.Proxies) == 2 && p.Proxies[0].Now != nil && p.Proxies[1].Now != nil
	})

	// The keys of 20 requests, and those of all others.
	heavy := []string{"first", "first", "first", "first", "first", "<b>second</b>", "<b>second</b>", "<b>second</b>", "third", "third"}
	both := []string{urls["caddy"], urls["traefik"]}
	r := harness.Run(t.Context(), harness.Load{Clients: 16, Requests: requests, Request: func(i int) *http.Request {
		key := fmt.Sprint("other-", i)
		if i%20 < len(heavy) {
			key = heavy[i%20]
		}
		return harness.Get(both[i/20%2], "X-Key", key)
	}})
	ended := time.Now()
	if err := r.Err(); err != nil {
		t.Fatal(err)
	}
	var top struct {
		Requests, Refused, Failed int64
		Asking, Keys              []struct {
			Key               string
			Requests, Refused int64
		}
	}
	await(t, "the page to have all requests", func() bool { return section("top", &top) && top.Requests == requests })
	t.Logf("the page had the last of %d requests after %v; the load: %v", requests, time.Since(ended).Round(time.Millisecond), r)
	if top.Refused != int64(r.Status[http.StatusTooManyRequests]) || top.Refused != requests/2-3*quota || top.Failed != 0 {
		t.Errorf("the page has %d refusals, and the clients %v", top.Refused, r.Status)
	}
	for i, want := range []struct {
		key   string
		share int64
	}{{"first", 5}, {"<b>second</b>", 3}, {"third", 2}} {
		for _, list := range [][]struct {
			Key               string
			Requests, Refused int64
		}{top.Asking, top.Keys} {
			if got := list[i]; got.Key != want.key || got.Requests != want.share*requests/20 || got.Refused != want.share*requests/20-quota {
				t.Errorf("key %d is %+v, want %+v", i, got, want)
			}
		}
	}
	var traffic struct {
		Sums struct{ Allowed, Refused, Failed int64 }
	}
	await(t, "the sums of the last hour", func() bool {
		return section("traffic", &traffic) && traffic.Sums.Allowed+traffic.Sums.Refused == requests
	})
	if traffic.Sums.Refused != top.Refused || traffic.Sums.Failed != 0 {
		t.Errorf("the last hour: %+v", traffic.Sums)
	}
	t.Logf("the last hour had it after %v", time.Since(ended).Round(time.Millisecond))
}

// TestManyPagesShareTheirQuestions: the database has one transaction a second more for each page at most.
func TestManyPagesShareTheirQuestions(t *testing.T) {
	const pages, seconds = 50, 6
	dsn := cluster.Open(t)
	bothProxies(t, dsn, startBackend(t), "prefix web\nlimit 10 1h\naudit denied", object{"prefix": "web", "limit": "10 1h", "audit": "denied"})
	s, err := page.New(page.Options{DSN: dsn})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(s)
	t.Cleanup(func() {
		s.Close()
		server.Close()
	})
	transactions := func() int64 {
		return queryInt(t, dsn, "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()")
	}
	rate := func() float64 {
		before, began := transactions(), time.Now()
		time.Sleep(seconds * time.Second) // counts what happens in a time
		return float64(transactions()-before) / time.Since(began).Seconds()
	}
	without := rate()
	for i := 0; i < pages; i++ {
		response, err := http.Get(server.URL + "/api/events")
		if err != nil || response.StatusCode != http.StatusOK {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = response.Body.Close() })
		go func() { _, _ = io.Copy(io.Discard, response.Body) }() // until the page ends
	}
	time.Sleep(3 * time.Second) // until the proxies report
	with := rate()
	t.Logf("%.1f transactions a second without a page, %.1f with %d pages", without, with, pages)
	if with-without > pages {
		t.Errorf("%d pages cost %.1f transactions a second", pages, with-without)
	}
}
