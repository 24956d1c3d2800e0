package main

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// peers are the proxies with other limiters, with another limit.
func peers(limit string) (specs []*proxySpec) {
	for _, r := range choose(allRows(), func(string) bool { return true }, false) {
		if s := *r.proxy; s.limit != nil && !s.ours() && r.load.connections == hundred.connections {
			s.limit = &limitSpec{peer: s.limit.peer, limit: limit}
			specs = append(specs, &s)
		}
	}
	return specs
}

// startBench is a run that only starts proxies, until the test's end.
func startBench(t *testing.T) *bench {
	b := newBench(t.Context())
	b.dir = t.TempDir()
	t.Cleanup(func() { check(b.stopServers()) })
	return b
}

// TestPeersLimit starts each of the other limiters as the benchmark does. If one did not count,
// it would look fast.
func TestPeersLimit(t *testing.T) {
	b := startBench(t)
	specs := peers("3 1h")
	if len(specs) != 4 {
		t.Errorf("%d peers", len(specs))
	}
	for _, s := range specs {
		var p *proxy
		if !b.attempt(s.name, func() { p = b.startProxy(s, 0) }) {
			t.Fatal(b.complaints)
		}
		var found []int
		for _, key := range []string{"a", "a", "a", "b", "a", "a"} {
			answer := harness.Ask(t, harness.Get("http://"+p.address+"/", keyHeader, key))
			found = append(found, answer.Status)
		}
		if want := []int{200, 200, 200, 200, http.StatusTooManyRequests, http.StatusTooManyRequests}; fmt.Sprint(found) != fmt.Sprint(want) {
			t.Errorf("%s answers %v, want %v", s.name, found, want)
		}
	}
}

// TestWithoutRedis leaves out the rows that need it, and says so.
func TestWithoutRedis(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	b := startBench(t)
	for _, s := range peers(ample) {
		if s.inRedis() && b.attempt(s.name, func() { b.startProxy(s, 0) }) {
			t.Errorf("%s has started", s.name)
		}
	}
	if len(b.complaints) != 2 || !strings.Contains(b.complaints[0], "Left out: Caddy + redis_rate, on Redis: no redis-server on this machine: install it") {
		t.Errorf("the report says %q", b.complaints)
	}
}

// TestPeersRunInTheSameCaddy as pg_ratelimit.
func TestPeersRunInTheSameCaddy(t *testing.T) {
	var found []string
	for _, module := range []string{filepath.Join(root, "xcaddy"), "caddy"} {
		text := must(os.ReadFile(filepath.Join(module, "go.mod")))
		found = append(found, string(regexp.MustCompile(`caddyserver/caddy/v2 v\S+`).Find(text)))
	}
	if found[0] == "" || found[0] != found[1] {
		t.Errorf("the versions are %q", found)
	}
}
