//go:build rehearse

package integration

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/authority"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// rehearseRestoreAndFailover restores a backup from an S3 bucket to a point in time, and then to a later
// moment, which brings back a change that the first restore undid. Then it fails over to a synchronous
// standby, which has all counts of the durable limit, and back to the first server. The S3 server has a
// certificate, because pgBackRest requires TLS.
func rehearseRestoreAndFailover(t *testing.T) {
	if *archiveGateway == "" {
		t.Fatal("no S3 server: set -archive-gateway to the path of versitygw, as make rehearse does")
	}
	r := newRehearsal(t)
	ca := rehearsedCA{authority.New(t), r}
	cert, key := ca.issue("s3", "localhost", time.Hour)
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "backups"), 0o755); err != nil { // a bucket is a folder
		t.Fatal(err)
	}
	port := strconv.Itoa(harness.FreePort(t))
	gateway := harness.Start(t, harness.Program{
		Path: *archiveGateway, Args: []string{"--port", "127.0.0.1:" + port, "--access", "backup", "--secret",
			"backup-secret", "--quiet", "--cert", cert, "--key", key, "posix", root},
	})
	gateway.AwaitAddress(t, "127.0.0.1:"+port)
	r.env = append(r.env, "S3_ENDPOINT=localhost:"+port, "S3_BUCKET=backups", "S3_REGION=us-east-1",
		"S3_KEY=backup", "S3_SECRET=backup-secret")
	r.destroyAndRestore(r.file("ca.crt", ca.PEM))
	if files, _ := filepath.Glob(filepath.Join(root, "backups", "*")); len(files) == 0 {
		t.Error("the bucket is empty")
	}
	if t.Failed() {
		return
	}
	r.destroy()
	restore := r.blocks["Restore to a point in time"][1]
	const before, after = `--target="$TIME"`, `--target="$UNDONE" --target-timeline=1`
	if !strings.Contains(restore, before) {
		t.Fatalf("the page restores without %q", before)
	}
	r.sh("a restore to a later moment", strings.Replace(restore, before, after, 1))
	r.awaitDecisions()
	if bans := r.number("SELECT count(*) FROM rate_limit_bans WHERE network = '198.51.100.0/24'"); bans != 1 {
		t.Error("a change that the first restore undid is missing after a restore to a later moment")
	}
	r.failOver()
}

// failOver creates a synchronous standby, fails over to it, and fails over back to the first server. The
// standby has all counts of the durable limit, and the limit holds.
func (r *rehearsal) failOver() {
	t := r.t
	r.replicateSynchronously()
	r.page("Replicate", 2)
	admitted := r.ask("/", 500, "failover")
	r.loseThePrimary()
	r.page("Fail over", 0)
	r.decidedWithin("the promotion", time.Now(), 2*time.Second)
	pause(time.Second) // proxies detect the failover in this time
	if n := r.number(rehearsedCount + " AND key = 'failover'"); n < admitted {
		t.Errorf("the standby counts %d, want the %d that were admitted", n, admitted)
	}
	if n := r.ask("/", rehearsedQuota+500, "failover"); admitted+n > rehearsedQuota {
		t.Errorf("%d were admitted before the failover, and %d after it, want %d at most", admitted, n,
			rehearsedQuota)
	}
	r.page("Back up", 3)
	r.sh("a pg_rewind that fails", "set +e; STANDBY_PORT=1\n"+r.blocks["Fail over"][1]+"! pg_ctl status")
	r.makeOldPrimaryStandby()
	r.awaitPolicyApplied()

	// Back to the first server.
	r.exchange("PGDATA", "STANDBY")
	r.exchange("PGPORT", "STANDBY_PORT")
	r.loseThePrimary()
	r.page("Fail over", 0)
	r.page("Back up", 3)
	r.makeOldPrimaryStandby()
	r.awaitPolicyApplied()
}

// makeOldPrimaryStandby makes the old primary a standby of the new primary.
func (r *rehearsal) makeOldPrimaryStandby() {
	r.t.Helper()
	r.page("Fail over", 1)
	await(r.t, "the old primary to stream", func() bool {
		return r.number("SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'") == 1
	})
}

// exchange swaps two variables of the commands.
func (r *rehearsal) exchange(a, b string) {
	r.t.Helper()
	r.env = append(r.env, a+"="+r.variable(b), b+"="+r.variable(a))
}

// destroyAndRestore destroys a database and restores it to a point in time, from a server with a certificate
// of ca.
func (r *rehearsal) destroyAndRestore(ca string) {
	t := r.t
	r.startProxies()
	r.awaitDecisions()
	cluster.Execute(t, r.dsn, "INSERT INTO rate_limit_tiers (tier) VALUES ('free'), ('pro'); INSERT INTO "+
		"rate_limit_users (user_id, tier) VALUES ('ann', 'free'); SELECT rate_limit_rule('early', action "+
		"=> 'block', paths => '{/early}')")
	r.page("Back up", 0)
	r.page("Back up", 1)
	r.sh("the authority of the server for S3", `echo "repo1-storage-ca-file=`+ca+`" >> "$PGBACKREST_CONFIG"`)
	r.page("Back up", 2)
	r.awaitDecisions()
	admitted := r.ask("/", 300, "k")
	r.sh("a ban", "caddy pg-ratelimit ban 192.0.2.0/24")
	r.awaitPolicyApplied()
	r.sh("a standby is awaited from the next reload on",
		`psql -c "ALTER SYSTEM SET synchronous_standby_names = '*'"`)
	r.page("Back up", 3)
	admitted += r.ask("/", 200, "k")
	time.Sleep(time.Second) // TIME has whole seconds
	r.env = append(r.env, "TIME="+r.text("SELECT date_trunc('second', now())::text"))
	time.Sleep(time.Second)

	// The restore undoes what follows.
	r.ask("/", 500, "k")
	r.ask("/", rehearsedQuota+500, "spent")
	r.ask("/short", rehearsedShort+100, "k")
	r.sh("changes", "caddy pg-ratelimit ban 198.51.100.0/24; caddy pg-ratelimit unban 192.0.2.0/24; caddy "+
		"pg-ratelimit users set ann tier=pro")
	r.env = append(r.env, "UNDONE="+r.text("SELECT now()::text"))
	cluster.Execute(t, r.dsn, "SELECT rate_limit_rule('later', action => 'block', paths => '{/later}'); "+
		"DELETE FROM rate_limit_rules WHERE name = 'early'")
	r.awaitPolicyApplied()
	r.checkStatuses("before the restore", map[string]int{"/early": 200, "/later": 403}, "new")
	r.checkStatuses("before the restore", map[string]int{"/": 429}, "spent")
	r.page("Restore to a point in time", 0)
	r.destroy()
	r.page("Restore to a point in time", 1)
	r.awaitDecisions()
	r.awaitPolicyApplied()
	pause(time.Second) // proxies detect the restore in this time
	r.page("Restore to a point in time", 2)
	r.sh("the saved changes", "grep -F 198.51.100.0/24 changes.json")
	check.Equal(t, "banned after the restore",
		r.text("SELECT string_agg(network::text, ' ') FROM rate_limit_bans"), "192.0.2.0/24")
	check.Equal(t, "the tier of ann after the restore",
		r.text("SELECT tier FROM rate_limit_users WHERE user_id = 'ann'"), "free")
	r.checkStatuses("after the restore", map[string]int{"/early": 403, "/later": 200}, "new")
	r.checkStatuses("after the restore", map[string]int{"/": 200, "/short": 200}, "spent")
	counted := r.number(rehearsedCount + " AND key = 'k'")
	if counted < admitted || counted > admitted+100 { // with leased units
		t.Errorf("%d are counted after the restore, want the %d that were admitted, and up to 100 leased",
			counted,
			admitted)
	}
	if n := r.ask("/", rehearsedQuota+500, "k"); n > rehearsedQuota-counted {
		t.Errorf("%d were admitted after the restore, want %d at most", n, rehearsedQuota-counted)
	} else if n < (rehearsedQuota-counted)*9/10 {
		t.Errorf("%d were admitted after the restore, want about %d", n, rehearsedQuota-counted)
	}
	check.Equal(t, "admitted after the restore", r.ask("/short", rehearsedShort+100, "k"), rehearsedShort)
}

// destroy removes all files of the server once the last change is archived.
func (r *rehearsal) destroy() {
	r.t.Helper()
	r.sh("a minute later", `psql -c "SELECT pg_switch_wal()"`)
	await(r.t, "the archive", func() bool {
		return r.number("SELECT count(*) FROM pg_stat_archiver WHERE last_archived_time > (SELECT max(at) "+
			"FROM rate_limit_changes)") == 1
	})
	r.sh("the loss of all files", `pg_ctl stop -m immediate; rm -rf "$PGDATA"`)
}

// checkStatuses checks the status of a request with a key at each path of each proxy.
func (r *rehearsal) checkStatuses(when string, want map[string]int, key string) {
	r.t.Helper()
	for path, status := range want {
		for _, url := range r.urls {
			if a := harness.Ask(r.t, harness.Get(url+path, "X-Key", key)); a.Status != status {
				r.t.Errorf("%s: %s with the key %s: status %d, want %d", when, url+path, key, a.Status,
					status)
			}
		}
	}
}
