//go:build rehearse

package integration

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// version is a version of this repository.
type version struct {
	root  string // a checkout
	caddy string // its program
}

// before is the version before: that of the environment's BEFORE, a commit, or the newest tag, or this commit
// as long as there was no release.
func before(t *testing.T) version {
	t.Helper()
	git := func(args ...string) string {
		t.Helper()
		out, err := exec.Command("git", append([]string{"-C", ".."}, args...)...).Output()
		text := strings.TrimSpace(string(out))
		if err != nil {
			t.Fatalf("git %q: %v", args, err)
		}
		return text
	}
	commit := os.Getenv("BEFORE")
	if commit == "" {
		if commit = git("tag", "--list", "v*", "--sort=-version:refname", "--merged"); commit == "" {
			commit = "HEAD"
		}
		commit, _, _ = strings.Cut(commit, "\n")
	}
	t.Logf("the version before is %s", git("log", "-1", "--format=%h of %cI: %s", commit))
	v := version{root: t.TempDir()}
	files := filepath.Join(t.TempDir(), "files.tar")
	for _, cmd := range []*exec.Cmd{exec.Command("git", "-C", "..", "archive", "-o", files, commit),
		exec.Command("tar", "-xf", files, "-C", v.root)} {
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", cmd, err, out)
		}
	}
	v.caddy = harness.Caddy(t, v.root)
	return v
}

// rehearseUpgrade upgrades the tables and the proxies under load, one after the other, and goes back to the
// proxies of the version before. Every request is decided, and no limit is exceeded.
func rehearseUpgrade(t *testing.T) {
	const quota = 500
	r := newRehearsal(t)
	older, newer := before(t), version{root: "..", caddy: buildCaddy(t)}
	limit := rehearsedLimit("rehearsed", quota)
	limit["durable"], limit["policy"] = true, object{"user": "{header.X-User}"}
	routes := []route{{"/", "", limit}}
	caddyOf := func(v version) proxy {
		address := harness.FreeAddress(t)
		c := launchConfig(t, v.caddy, address, caddyfile(address, r.dsn, routes))
		c.AwaitAddress(t, address)
		return proxy{c.Process, c.url}
	}
	traefikOf := func(v version) proxy {
		tr := startTraefikOf(t, v.root, object{}, "INFO", routes, "DATABASE_URL="+r.dsn)
		return proxy{tr.Process, tr.url}
	}
	decides := func(p proxy) proxy {
		await(t, "decisions of "+p.url, func() bool {
			return harness.Ask(t, harness.Get(p.url, "X-Key", "probe")).
				Status != http.StatusServiceUnavailable
		})
		return p
	}
	running := []proxy{decides(caddyOf(older)), decides(traefikOf(older))}
	cluster.Execute(t, r.dsn, `INSERT INTO rate_limit_tiers (tier)
		VALUES ('free'); INSERT INTO rate_limit_users (user_id, tier) VALUES ('ann', 'free');
		SELECT rate_limit_rule('plan', tiers => '{free}', algorithm => 'fixed_window',
		per_day => `+strconv.Itoa(quota)+`, durable => true)`)
	awaitObeyed(t, r.dsn, len(running))

	var urls [2]atomic.Value
	for i := range urls {
		urls[i].Store(running[i].url)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var byKey, byUser atomic.Int64 // admitted
	done := make(chan *harness.Result, 1)
	go func() {
		done <- harness.Run(ctx, harness.Load{Clients: 8, Every: 5 * time.Millisecond,
			Request: func(i int) *http.Request {
				url := urls[i%2].Load().(string)
				switch i / 2 % 10 {
				case 0:
					return harness.Get(url, "X-Key", "k")
				case 1:
					return harness.Get(url, "X-Key", "of ann "+strconv.Itoa(i), "X-User", "ann")
				}
				return harness.Get(url, "X-Key", strconv.Itoa(i))
			},
			Answered: func(i int, reply harness.Reply) {
				if reply.Status == http.StatusOK && i/2%10 == 0 {
					byKey.Add(1)
				} else if reply.Status == http.StatusOK && i/2%10 == 1 {
					byUser.Add(1)
				}
			}})
	}()
	replace := func(i int, p proxy) {
		t.Helper()
		decides(p)
		urls[i].Store(p.url)
		time.Sleep(500 * time.Millisecond) // for the answers that the one before still owes
		if err := running[i].Stop(); err != nil {
			t.Error(err)
		}
		running[i] = p
		time.Sleep(time.Second)
	}
	time.Sleep(time.Second)
	r.sh("the upgrade of the tables", "caddy pg-ratelimit migrate")
	time.Sleep(time.Second)
	replace(0, caddyOf(newer))
	replace(1, traefikOf(newer))
	t.Logf("all are new: %d admitted by key, %d by user", byKey.Load(), byUser.Load())
	r.sh("a change", "caddy pg-ratelimit ban 198.51.100.0/24")
	replace(0, caddyOf(older)) // the way back
	replace(1, traefikOf(older))
	r.sh("a change", "caddy pg-ratelimit unban 198.51.100.0/24")
	for _, count := range []*atomic.Int64{&byKey, &byUser} {
		await(t, "the load to use up a limit", func() bool { return count.Load() >= quota })
	}
	replace(0, caddyOf(newer))
	stop()
	result := <-done
	t.Logf("%v; %d admitted by key, %d by user", result, byKey.Load(), byUser.Load())
	if err := result.Err(); err != nil {
		t.Error(err)
	}
	if n := result.Sent - result.Status[http.StatusOK] - result.Status[http.StatusTooManyRequests]; n > 0 {
		t.Errorf("%d requests had another answer than 200 and 429", n)
	}
	if byKey.Load() != quota || byUser.Load() != quota {
		t.Errorf("%d and %d were admitted of limits of %d", byKey.Load(), byUser.Load(), quota)
	}

	// Postgres itself. The other version is the same one, since Debian has no other.
	tools := filepath.Dir(cluster.Tool(t, "pg_upgrade"))
	r.env = append(r.env, "OLD_BIN="+tools, "NEW_BIN="+tools)
	counted := r.number(rehearsedCount + " AND key = 'k'")
	r.page("Upgrade", 0)
	for _, p := range running {
		decides(p)
		if a := harness.Ask(t, harness.Get(p.url, "X-Key", "k")); a.Status != http.StatusTooManyRequests {
			t.Errorf("%s answers %d to a key that is used up, after pg_upgrade", p.url, a.Status)
		}
	}
	if n := r.number(rehearsedCount + " AND key = 'k'"); n != counted {
		t.Errorf("%d are counted after pg_upgrade, and %d were before it", n, counted)
	}
}
