//go:build rehearse

package integration

import (
	"context"
	"fmt"
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

// rehearsal runs the commands of docs/recovery.md on private servers.
type rehearsal struct {
	t       *testing.T
	dir     string
	env     []string
	account *syscall.Credential // of the server; nil is that of the test
	blocks  map[string][]string // of the page, by heading
	dsn     string
	urls    []string // of a Caddy and a Traefik
}

const (
	rehearsedQuota = 2000
	rehearsedCount = "SELECT coalesce(sum(count), 0)::bigint FROM rate_limit_durable WHERE prefix = 'rehearsed'"
)

func newRehearsal(t *testing.T) *rehearsal {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "rehearse-")
	if err != nil {
		t.Fatal(err)
	}
	r := &rehearsal{t: t, dir: dir, blocks: map[string][]string{}}
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
	program, err := os.ReadFile(buildCaddy(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "caddy"), program, 0o755); err != nil { // the account may not see the checkout
		t.Fatal(err)
	}
	port, standby := harness.FreePort(t), harness.FreePort(t)
	r.dsn = fmt.Sprintf("postgres://postgres@127.0.0.1:%d,127.0.0.1:%d/postgres?target_session_attrs=read-write&sslmode=disable", port, standby)
	tools := filepath.Dir(cluster.Tool(t, "pg_ctl"))
	r.env = []string{
		"PATH=" + tools + ":" + dir + ":/usr/bin:/bin", "HOME=" + dir, "LC_ALL=C",
		"PGDATA=" + dir + "/primary", "PGHOST=" + dir, "PGPORT=" + strconv.Itoa(port), "PGUSER=postgres", "PGDATABASE=postgres",
		"STANDBY=" + dir + "/standby", "STANDBY_PORT=" + strconv.Itoa(standby),
		"PGBACKREST_CONFIG=" + dir + "/pgbackrest.conf", "PGBACKREST_STANZA=limits", "REPOSITORY=" + dir + "/repository",
		"DATABASE_URL=" + r.dsn,
	}
	page, err := os.ReadFile("../docs/recovery.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, section := range strings.Split(string(page), "\n## ")[1:] {
		title, rest, _ := strings.Cut(section, "\n")
		for _, b := range strings.Split(rest, "```sh\n")[1:] {
			text, _, _ := strings.Cut(b, "```")
			r.blocks[title] = append(r.blocks[title], text)
		}
	}
	r.sh("a server", fmt.Sprintf(`initdb -U postgres -A trust --no-sync >/dev/null
printf "port = %d\nunix_socket_directories = '%s'\nfsync = off\n" >> "$PGDATA/postgresql.conf"
pg_ctl start -w -l "$PGDATA/../log"`, port, dir))
	t.Cleanup(func() {
		r.t = t
		r.sh("the end", `for d in "$PGDATA" "$STANDBY"; do [ ! -f "$d/postmaster.pid" ] || pg_ctl stop -m immediate -D "$d"; done`)
	})
	return r
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
	said, _ := os.ReadFile(log.Name())
	if err != nil {
		logs := ""
		for _, name := range []string{"log", "log-standby"} {
			log, _ := os.ReadFile(filepath.Join(r.dir, name))
			logs += string(log[max(0, len(log)-3000):])
		}
		r.t.Fatalf("%s: %v\n%s\n%s", name, err, said, logs)
	}
	r.t.Logf("%s:\n%s", name, said)
}

// page runs the block n of a section of the page.
func (r *rehearsal) page(section string, n int) {
	r.t.Helper()
	if n >= len(r.blocks[section]) {
		r.t.Fatalf("the section %q of the page has no block %d", section, n)
	}
	r.sh(section, r.blocks[section][n])
}

// ask sends requests to both proxies, and returns how many were admitted. A request without a decision
// counts as none.
func (r *rehearsal) ask(n int, key string) (admitted int64) {
	r.t.Helper()
	result := harness.Run(r.t.Context(), harness.Load{Clients: 4, Requests: n, Request: func(i int) *http.Request {
		return harness.Get(r.urls[i%2], "X-Key", key)
	}})
	if err := result.Err(); err != nil {
		r.t.Fatal(err)
	}
	return int64(result.Status[http.StatusOK])
}

// decided waits until both proxies decide.
func (r *rehearsal) decided() {
	r.t.Helper()
	for _, url := range r.urls {
		await(r.t, "decisions of "+url, func() bool {
			return harness.Ask(r.t, harness.Get(url, "X-Key", "probe")).Status != http.StatusServiceUnavailable
		})
	}
}

// obeyed waits until both proxies are in the registry and obey all changes.
func (r *rehearsal) obeyed() { awaitObeyed(r.t, r.dsn, 2) }

func (r *rehearsal) number(sql string) int64 { return queryInt(r.t, r.dsn, sql) }

func (r *rehearsal) text(sql string) (text string) {
	r.t.Helper()
	if err := cluster.Connect(r.t, r.dsn).QueryRow(r.t.Context(), sql).Scan(&text); err != nil {
		r.t.Fatal(err)
	}
	return text
}

// proxies starts a Caddy and a Traefik with a leased limit for each X-Key, and a policy.
func (r *rehearsal) proxies() {
	backend := startBackend(r.t)
	limit := strconv.Itoa(rehearsedQuota) + " 1h"
	tr := startTraefik(r.t, []route{{"/", backend, object{"dsn": r.dsn, "timeout": "2s", "onError": "deny", "prefix": "rehearsed", "key": "{header.X-Key}", "limit": limit,
		"algorithm": "fixed_window", "durable": true, "synchronousCommit": true, "lease": "2%", "policy": object{"user": "{header.X-User}"}}}})
	c := startCaddy(r.t, r.dsn, caddyRoute{"/*", []string{"route {\n" + limitText(limit) + "\n}"}})
	r.urls = []string{c.url, tr.url}
}

func limitText(limit string) string {
	return "\tpg_ratelimit {\n\t\ttimeout 2s\n\t\ton_error deny\n\t\tprefix rehearsed\n\t\tkey {header.X-Key}\n\t\tlimit " + limit +
		"\n\t\talgorithm fixed_window\n\t\tdurable on\n\t\tsynchronous_commit on\n\t\tlease 2%\n\t\tpolicy {\n\t\t\tuser {header.X-User}\n\t\t}\n\t}"
}

// TestRehearsal runs docs/recovery.md: a backup, a restore to a point in time, and a failover, under a
// Caddy and a Traefik that stay in use. No key gets more than its quota of what the tables remember.
func TestRehearsal(t *testing.T) {
	r := newRehearsal(t)
	r.proxies()
	r.decided()
	execute(t, r.dsn, "INSERT INTO rate_limit_tiers (tier) VALUES ('free'), ('pro'); INSERT INTO rate_limit_users (user_id, tier) VALUES ('ann', 'free')")
	r.page("Back up", 0)
	r.decided()
	admitted := r.ask(300, "k")
	r.sh("a ban", "caddy pg-ratelimit ban 192.0.2.0/24")
	r.obeyed()
	r.page("Back up", 1)
	admitted += r.ask(200, "k")
	time.Sleep(time.Second) // TIME has whole seconds
	r.env = append(r.env, "TIME="+r.text("SELECT date_trunc('second', now())::text"))
	time.Sleep(time.Second)

	// This future will not have happened.
	r.ask(500, "k")
	r.sh("changes", "caddy pg-ratelimit ban 198.51.100.0/24; caddy pg-ratelimit unban 192.0.2.0/24; caddy pg-ratelimit users set ann tier=pro")
	r.obeyed()
	r.page("Restore to a point in time", 0)
	r.decided()
	r.obeyed()
	time.Sleep(time.Second) // the time within which proxies notice
	r.page("Restore to a point in time", 1)
	if bans := r.text("SELECT string_agg(network::text, ' ') FROM rate_limit_bans"); bans != "192.0.2.0/24" {
		t.Errorf("banned after the restore: %s", bans)
	}
	if tier := r.text("SELECT tier FROM rate_limit_users WHERE user_id = 'ann'"); tier != "free" {
		t.Errorf("the tier of ann after the restore: %s", tier)
	}
	counted := r.number(rehearsedCount + " AND key = 'k'")
	if counted < admitted || counted > admitted+100 { // with leased units
		t.Errorf("%d are counted after the restore, and %d were admitted before the time", counted, admitted)
	}
	if n := r.ask(rehearsedQuota+500, "k"); n > rehearsedQuota-counted {
		t.Errorf("%d were admitted after the restore, and %d are counted before it: more than %d", n, counted, rehearsedQuota)
	} else if n < (rehearsedQuota-counted)*9/10 {
		t.Errorf("%d were admitted after the restore, want about %d", n, rehearsedQuota-counted)
	}

	r.page("Replicate", 0)
	r.decided()
	await(t, "the standby to be synchronous", func() bool {
		return r.number("SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'") == 1
	})
	admitted = r.ask(500, "failover")
	r.sh("the loss of the primary", `kill -9 $(head -1 "$PGDATA/postmaster.pid")`)
	time.Sleep(500 * time.Millisecond)
	r.page("Fail over", 0)
	promoted := time.Now()
	r.decided()
	if took := time.Since(promoted); took > 2*time.Second {
		t.Errorf("the proxies decided %v after the promotion, want 2s at most", took)
	} else {
		t.Logf("the proxies decided %v after the promotion", took)
	}
	time.Sleep(time.Second)
	if n := r.number(rehearsedCount + " AND key = 'failover'"); n < admitted {
		t.Errorf("%d were admitted, and %d are counted on the standby", admitted, n)
	}
	if n := r.ask(rehearsedQuota+500, "failover"); admitted+n > rehearsedQuota {
		t.Errorf("%d were admitted before the failover, and %d after it: more than %d", admitted, n, rehearsedQuota)
	}
	r.page("Fail over", 1)
	await(t, "the old primary to follow", func() bool {
		return r.number("SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'") == 1
	})
	r.obeyed()
	for section, blocks := range r.blocks {
		if want := map[string]int{"Back up": 2, "Restore to a point in time": 2, "Replicate": 1, "Fail over": 2}[section]; len(blocks) != want {
			t.Errorf("the section %q has %d blocks, and %d are run", section, len(blocks), want)
		}
	}
}
