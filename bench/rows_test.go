package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgxdb"
)

// TestRowsAreComparable: names differ, and a row is compared with rows of the same proxy that have as many connections.
func TestRowsAreComparable(t *testing.T) {
	rows := allRows()
	for _, r := range besideBefore(allRows()) { // with the same row of the version before
		if before := r.base; before.name != r.name+", before" || before.proxy.limit != r.proxy.limit || before.load.connections != r.load.connections {
			t.Errorf("%s is compared with %s", r.name, before.name)
		}
	}
	seen := map[string]bool{}
	for _, r := range rows {
		if seen[r.name] {
			t.Errorf("%q occurs twice", r.name)
		}
		seen[r.name] = true
		for _, other := range []*row{r.base, r.memory, r.redis} {
			if other != nil && (!slices.Contains(rows, other) || other.proxy.traefik != r.proxy.traefik || other.load.connections != r.load.connections || other.load.rate != r.load.rate) {
				t.Errorf("%s is compared with %s", r.name, other.name)
			}
		}
		if r.redis != nil && (!r.redis.proxy.inRedis() || r.redis.base != r.base || r.memory != nil && r.memory.base != r.base) {
			t.Errorf("%s is compared with the peers %v and %v", r.name, r.memory, r.redis)
		}
		if want := strings.HasSuffix(r.name, "256 connections"); want != (r.load.connections == 256) {
			t.Errorf("%s has %d connections", r.name, r.load.connections)
		}
		if strings.Contains(r.name, "leased") != (r.proxy.limit != nil && r.proxy.limit.lease != "") {
			t.Errorf("%s: the limit is %+v", r.name, r.proxy.limit)
		}
	}
}

// TestCheckOutHasTheFilesOfTheCommit, not those of the work tree.
func TestCheckOutHasTheFilesOfTheCommit(t *testing.T) {
	repository := t.TempDir()
	git := func(args ...string) {
		if out, err := exec.Command("git", append([]string{"-C", repository, "-c", "user.name=t", "-c", "user.email=t@example.com"}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v: %s", args, err, out)
		}
	}
	write := func(text string) { check(os.WriteFile(filepath.Join(repository, "file"), []byte(text), 0o644)) }
	git("init", "-q")
	write("old")
	git("add", "file")
	git("commit", "-q", "-m", "one")
	write("new")
	b := newBench(t.Context())
	b.dir = t.TempDir()
	if text := string(must(os.ReadFile(filepath.Join(b.checkOut(repository, "HEAD"), "file")))); text != "old" {
		t.Errorf("the file holds %q", text)
	}
	var err error
	func() {
		defer catch(&err)
		b.checkOut(repository, "nonsense")
	}()
	if err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("of a commit that is none: %v", err)
	}
}

func TestCaddyfileHasEveryZone(t *testing.T) {
	limit := &limitSpec{algorithm: "gcra", limit: "5 1m", lease: "5%", options: "durable", zones: []string{"team", "everybody"}}
	text := configureCaddy(&proxy{spec: &proxySpec{limit: limit}, address: "127.0.0.1:20001", dsn: "postgres://x"})
	for want, times := range map[string]int{"algorithm gcra\n": 3, "limit 5 1m\n": 3, "lease 5%\n": 3, "durable\n": 3, "zone ": 2, "on_error deny\n": 1} {
		if n := strings.Count(text, want); n != times {
			t.Errorf("%q occurs %d times, want %d:\n%s", want, n, times, text)
		}
	}
	text = configureCaddy(&proxy{spec: &proxySpec{limit: withPolicy}, address: "127.0.0.1:20001", dsn: "postgres://x"})
	if !strings.Contains(text, "pg_ratelimit {") || !strings.Contains(text, "api_key {http.request.header.X-Key}") || strings.Contains(text, "algorithm") {
		t.Errorf("the Caddy with a policy has this configuration:\n%s", text)
	}
	if strings.Contains(configureCaddy(&proxy{spec: &proxySpec{}}), "pg_ratelimit") {
		t.Error("the plain Caddy has a limit")
	}
}

// TestPolicyRows fills the tables of a policy with fewer keys, and finds those that loads send.
func TestPolicyRows(t *testing.T) {
	ctx := t.Context()
	dsn := cluster.Open(t)
	query(ctx, dsn, schema.File, policyRowsOf(70000))
	live := must(policy.New(must(pgxdb.Open(dsn, pgxdb.Options{})), policy.Settings{DisableMigration: true}))
	defer live.Close()
	for n, want := range map[int]string{0: "user-0 free", 1: "user-1 pro", 65539: "user-65539 pro", 69999: "user-69999 free", 70000: " anonymous"} {
		var o policy.Verdict
		facts := policy.Facts{Tier: "anonymous", Path: "/"}
		if err := live.Evaluate(ctx, time.Minute, keyName(n), "", &facts, &o); err != nil || o.User+" "+o.Tier != want || (len(o.Hits) == 1) != (o.User != "") {
			t.Errorf("key %d: %+v, %v, want %s", n, o, err, want)
		}
	}
}
