package integration

import (
	"context"
	"flag"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/admin"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

var (
	restoreUsers  = flag.Int("restore-users", 5000, "how many users TestABackupIsRestoredUnderLoad restores")
	restoreRounds = flag.Int("restore-rounds", 2, "how often TestABackupIsRestoredUnderLoad restores them")
)

// TestABackupIsRestoredUnderLoad restores a backup into the live database as docs/runbook.md says. A path
// stays blocked and a network banned throughout. A user who is limited stays so, though the
// counters begin anew. nodes says that a proxy is behind by nothing only once it obeys what the
// backup has. What proxies see of half a restore is tested in internal/plane/policy.
func TestABackupIsRestoredUnderLoad(t *testing.T) {
	const limit = 5
	cluster.Tool(t, "pg_dump")
	dsn := policyDatabase(t, people+fmt.Sprintf(`
		INSERT INTO rate_limit_users (user_id, tier) SELECT 'u' || i, 'free' FROM generate_series(1, %d) AS i;
		SELECT rate_limit_rule('closed', action => 'block', paths => '{/closed/*}');
		SELECT rate_limit_rule('plan', tiers => '{free}', algorithm => 'fixed_window', per_day => %d, durable => true);
		INSERT INTO rate_limit_bans (network) VALUES ('127.0.0.9');`, *restoreUsers, limit))
	urls := governedBy(t, dsn, object{"onError": "deny"})
	awaitObeyed(t, dsn, len(urls))
	folder := t.TempDir()
	run := func(name string, args ...string) {
		t.Helper()
		for end := time.Now().Add(5 * time.Minute); ; {
			out, err := exec.Command(cluster.Tool(t, name), args...).CombinedOutput()
			if err == nil {
				return
			}
			if !strings.Contains(string(out), "deadlock detected") || time.Now().After(end) {
				t.Fatalf("%v: %v\n%s", args, err, out)
			}
			t.Logf("%s: again, after a deadlock with a proxy", name)
		}
	}
	backup := filepath.Join(folder, "limits.dump")
	var closedURLs []string
	for _, url := range urls {
		closedURLs = append(closedURLs, url+"/closed")
	}
	closed, banned := watch(t, closedURLs, "X-User", "bob"), watchFrom(t, "127.0.0.9", urls, "X-User", "bob")
	limited := watch(t, urls, "X-User", "alice")
	watch(t, urls, "X-User", "carol")
	await(t, "the limit", func() bool { return answersOf(limited)[429] > 0 })
	run("pg_dump", "-Fc", "-d", dsn, "-f", backup)
	db, err := admin.Open(context.Background(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(db.Close)
	for range *restoreRounds {
		cluster.Execute(t, dsn, "SELECT rate_limit_rule('later', action => 'block', paths => '{/later}')")
		for _, url := range urls {
			await(t, "the rule that the backup lacks", func() bool { return harness.Ask(t, harness.Get(url+"/later")).Status == 403 })
		}
		for _, watchers := range [][]*watcher{closed, banned, limited} {
			answersOf(watchers)
		}
		begun := time.Now()
		run("pg_restore", "-1", "--clean", "-d", dsn, backup)
		took := time.Since(begun)
		restored := time.Now()
		await(t, "nodes", func() bool {
			nodes, err := db.Nodes(context.Background())
			if err != nil {
				return false
			}
			live := 0 // the backup also has rows of the registry, which are gone after a while
			for _, n := range nodes {
				if !n.Live {
					continue
				}
				live++
				if n.Behind == nil || *n.Behind != 0 {
					return false
				}
			}
			return live == len(urls)
		})
		said := time.Since(restored)
		for _, url := range urls {
			if a := harness.Ask(t, harness.Get(url+"/later")); a.Status == 403 {
				t.Errorf("nodes says that %s obeys the backup, and it does not", url)
			}
		}
		passed := 0
		await(t, "the limit", func() bool {
			answers := answersOf(limited)
			passed += answers[200]
			return answers[200] == 0 && answers[429] > 0
		})
		answers := []map[int]int{answersOf(closed), answersOf(banned)}
		t.Logf("restored in %v; nodes tells so after %v; of the limited user %d passed; blocked %v, banned %v", took, said, passed, answers[0], answers[1])
		if passed > limit {
			t.Errorf("%d requests of the limited user passed, want %d at most", passed, limit)
		}
		for i, status := range answers {
			if len(status) != 1 || status[403] == 0 {
				t.Errorf("%s answered %v, want 403 alone", []string{"the blocked path", "the banned network"}[i], status)
			}
		}
	}
}
