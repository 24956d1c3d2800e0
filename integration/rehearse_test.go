//go:build rehearse

package integration

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// rehearsal runs the commands of docs/servers.md on private servers.
type rehearsal struct {
	t       *testing.T
	dir     string
	env     []string
	account *syscall.Credential // account of the server; nil: the account of the test
	blocks  map[string][]string // the commands of the page, by heading
	dsn     string
	urls    []string // of a Caddy and a Traefik
}

const (
	rehearsedQuota = 2000 // quota of the durable limit
	rehearsedShort = 200  // quota of the limit at /short, which is not durable
	rehearsedCount = "SELECT coalesce(sum(count), 0)::bigint FROM rate_limit_durable WHERE prefix = " +
		"'rehearsed'"
)

func newRehearsal(t *testing.T) *rehearsal {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "rehearse-")
	if err != nil {
		t.Fatal(err)
	}
	r := &rehearsal{t: t, dir: dir, blocks: rehearsedBlocks(t)}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if os.Geteuid() == 0 {
		u, err := user.Lookup("postgres")
		if err != nil {
			t.Fatal(err)
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		r.account = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		if err := os.Chown(dir, uid, gid); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := harness.Installed(t.Context(), "pgbackrest"); err != nil {
		t.Fatal(err)
	}
	program := readFile(t, buildCaddy(t))
	// Copy the program, because the account may have no access to the repository.
	if err := os.WriteFile(filepath.Join(dir, "caddy"), []byte(program), 0o755); err != nil {
		t.Fatal(err)
	}
	tools := filepath.Dir(cluster.Tool(t, "pg_ctl"))
	// Run pg_ctl without the other variables, as Debian's pg_ctlcluster does.
	emptied := "#!/bin/sh\nexec env -i PGDATA=\"$PGDATA\" " + tools + "/pg_ctl \"$@\"\n"
	if err := os.WriteFile(filepath.Join(dir, "pg_ctl"), []byte(emptied), 0o755); err != nil {
		t.Fatal(err)
	}
	port, standby := harness.FreePort(t), harness.FreePort(t)
	r.dsn = fmt.Sprintf("postgres://postgres@127.0.0.1:%d,127.0.0.1:%d/postgres"+
		"?target_session_attrs=read-write&sslmode=disable", port, standby)
	r.env = []string{
		"PATH=" + dir + ":" + tools + ":/usr/bin:/bin", "HOME=" + dir, "LC_ALL=C",
		"PGDATA=" + dir + "/primary", "PGHOST=" + dir, "PGPORT=" + strconv.Itoa(port), "PGUSER=postgres",
		"PGDATABASE=postgres",
		"STANDBY=" + dir + "/standby", "STANDBY_PORT=" + strconv.Itoa(standby),
		"PGBACKREST_CONFIG=" + dir + "/pgbackrest.conf", "PGBACKREST_STANZA=limits", "REPOSITORY=" + dir +
			"/repository",
		"DATABASE_URL=" + r.dsn,
	}
	r.sh("a server", fmt.Sprintf(`initdb -U postgres -A trust --no-sync >/dev/null
printf "port = %d\nunix_socket_directories = '%s'\nfsync = off\n" >> "$PGDATA/postgresql.conf"
pg_ctl start -w -l "$PGDATA/../log"`, port, dir))
	t.Cleanup(func() {
		r.t = t
		r.sh("the end", `for d in "$PGDATA" "$PGDATA.new" "$STANDBY"; do [ ! -f "$d/postmaster.pid" ] || `+
			`pg_ctl stop -m immediate -D "$d" || true; done`)
	})
	return r
}

// rehearsedBlocks returns the commands of the page, by heading.
func rehearsedBlocks(t *testing.T) map[string][]string {
	t.Helper()
	page := readFile(t, "../docs/servers.md")
	blocks := map[string][]string{}
	for _, section := range strings.Split(page, "\n## ")[1:] {
		title, rest, _ := strings.Cut(section, "\n")
		for _, b := range strings.Split(rest, "```sh\n")[1:] {
			text, _, _ := strings.Cut(b, "```")
			blocks[title] = append(blocks[title], text)
		}
	}
	return blocks
}

// sh runs commands as the account of the server.
func (r *rehearsal) sh(name, script string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-euxo", "pipefail", "-c", script)
	cmd.Dir = r.dir
	cmd.Env = r.env
	if r.account != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: r.account}
	}
	log, err := os.Create(filepath.Join(r.dir, "commands"))
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	cmd.Stdout, cmd.Stderr = log, log // a file: the servers that are started keep it open
	err = cmd.Run()
	output, _ := os.ReadFile(log.Name())
	if err != nil {
		logs := ""
		for _, name := range []string{"log", "log-standby"} {
			log, _ := os.ReadFile(filepath.Join(r.dir, name))
			logs += string(log[max(0, len(log)-3000):])
		}
		r.t.Fatalf("%s: %v\n%s\n%s", name, err, output, logs)
	}
	r.t.Logf("%s:\n%s", name, output)
}

// rehearsedPages has the blocks of the page that were run.
var rehearsedPages = map[string]bool{}

// page runs block n of a section of the page.
func (r *rehearsal) page(section string, n int) {
	r.t.Helper()
	if n >= len(r.blocks[section]) {
		r.t.Fatalf("the section %q of the page has %d blocks, want a block %d", section,
			len(r.blocks[section]), n)
	}
	r.sh(section, r.blocks[section][n])
	rehearsedPages[section+" "+strconv.Itoa(n)] = true
}

// ask sends n requests to a path of both proxies, and returns how many were admitted. A request without a
// decision is not admitted.
func (r *rehearsal) ask(path string, n int, key string) (admitted int64) {
	r.t.Helper()
	return r.askEvery(0, path, n, key)
}

// askEvery is like ask, and sends a request each time an interval has passed.
func (r *rehearsal) askEvery(interval time.Duration, path string, n int, key string) (admitted int64) {
	r.t.Helper()
	result := harness.Run(r.t.Context(), harness.Load{Clients: 4, Requests: n, Every: interval,
		Request: func(i int) *http.Request {
			return harness.Get(r.urls[i%2]+path, "X-Key", key)
		}})
	if err := result.Err(); err != nil {
		r.t.Fatal(err)
	}
	return int64(result.Status[http.StatusOK])
}

// awaitDecisions waits until both proxies decide.
func (r *rehearsal) awaitDecisions() {
	r.t.Helper()
	for _, url := range r.urls {
		await(r.t, "decisions of "+url, func() bool {
			return harness.Ask(r.t, harness.Get(url, "X-Key",
				"probe")).Status != http.StatusServiceUnavailable
		})
	}
}

// awaitPolicyApplied waits until both proxies are in the registry and apply all changes.
func (r *rehearsal) awaitPolicyApplied() { awaitPolicyApplied(r.t, r.dsn, 2) }

func (r *rehearsal) number(sql string) int64 { return cluster.Query[int64](r.t, r.dsn, sql) }

func (r *rehearsal) text(sql string) string { return cluster.Query[string](r.t, r.dsn, sql) }

// startProxies starts a Caddy and a Traefik. Both have a policy, a durable limit with leases, and at /short a
// limit that is not durable. The limits count by X-Key. more are further routes.
func (r *rehearsal) startProxies(more ...route) {
	short := rehearsedLimit("short", rehearsedShort)
	long := rehearsedLimit("rehearsed", rehearsedQuota)
	maps.Copy(long, object{"durable": true, "synchronousCommit": true, "lease": "2%",
		"policy": object{"user": "{header.X-User}"}})
	r.urls = nil
	for _, p := range startBoth(r.t, r.dsn, append(more, route{path: "/short", limit: short},
		route{path: "/", limit: long})...) {
		r.urls = append(r.urls, p.url)
	}
}

// rehearsedLimit returns a limit for each X-Key.
func rehearsedLimit(prefix string, quota int) object {
	return object{"timeout": "2s", "onError": "deny", "prefix": prefix, "key": "{header.X-Key}",
		"limit": fmt.Sprint(quota, " 1h"), "algorithm": "fixed_window"}
}

// TestRehearsal runs all commands of docs/servers.md, each in one of the parts, while a Caddy and a Traefik
// are in use.
func TestRehearsal(t *testing.T) {
	parts := []struct {
		name     string
		rehearse func(*testing.T)
	}{
		{"a restore from S3 and a failover", rehearseRestoreAndFailover},
		{"PgBouncer", rehearsePgBouncer},
		{"passwords and certificates", rehearseTLS},
		{"an upgrade", rehearseUpgrade},
		{"an upgrade by replication", rehearseReplication},
	}
	n := 0
	for _, part := range parts {
		t.Run(part.name, func(t *testing.T) {
			n++
			part.rehearse(t)
		})
	}
	if t.Failed() || n < len(parts) {
		return
	}
	for section, blocks := range rehearsedBlocks(t) {
		for i := range blocks {
			if !rehearsedPages[section+" "+strconv.Itoa(i)] {
				t.Errorf("block %d of the section %q was not run", i, section)
			}
		}
	}
}
