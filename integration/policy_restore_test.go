package integration

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/policytest"
)

var (
	restoreUsers  = flag.Int("restore-users", 5000, "how many users TestABackupIsRestoredUnderLoad restores")
	restoreRounds = flag.Int("restore-rounds", 1,
		"how often TestABackupIsRestoredUnderLoad restores them in each way")
)

// policyTables are the tables of the policy.
var policyTables = []string{"rate_limit_tiers", "rate_limit_users", "rate_limit_api_keys", "rate_limit_rules",
	"rate_limit_rule_limits", "rate_limit_overrides", "rate_limit_bans"}

// askShutOut sends requests that a ban or a block rule refuses.
func askShutOut(t *testing.T, urls []string, bannedKeys ...string) *askers {
	t.Helper()
	plain, shut := clientFrom("127.0.0.1"), clientFrom("127.0.0.9")
	const key = "Authorization"
	kinds := map[string]func() int{}
	for _, url := range urls {
		add := func(kind string, client *http.Client, path, header string, value func() string) {
			kinds[kind+" at "+url] = func() int {
				return statusOf(t, client, harness.Get(url+path, header, value()))
			}
		}
		random := func() string { return randomKey(t) }
		fixed := func(value string) func() string { return func() string { return value } }
		add("a blocked path, random key", plain, "/closed/x", key, random)
		add("a blocked path, user", plain, "/closed/x", "X-User", fixed("bob"))
		add("a banned network, random key", shut, "/", key, random)
		add("a banned network, another user", shut, "/", "X-User", fixed("bob"))
		add("a banned user", plain, "/", "X-User", fixed("mallory"))
		for i, banned := range bannedKeys {
			add(fmt.Sprint("banned key ", i), plain, "/", key, fixed(banned))
		}
	}
	return askOften(t, kinds)
}

// byStatus adds the counts of all kinds up by status.
func byStatus(responses map[string]map[int]int) map[int]int {
	sum := map[int]int{}
	for _, counts := range responses {
		for status, n := range counts {
			sum[status] += n
		}
	}
	return sum
}

// While a backup is restored into the live database, bans and block rules hold. The limit admits its quota
// only once more, because the counters start anew. A proxy that rate_limit_proxies shows as 0 changes behind
// has applied the policy of the backup. restoreWays lists the ways to run pg_restore; docs/runbook.md has the
// first way. internal/plane/policy tests what proxies read of a partial restore.
func TestABackupIsRestoredUnderLoad(t *testing.T) {
	const limit = 5
	banned, insert := policytest.NewKey(t, 7, "alice")
	ofBanned, insertOther := policytest.NewKey(t, 8, "mallory")
	dsn := policytest.Open(t, policytest.People+`
		INSERT INTO rate_limit_users (user_id, tier) VALUES ('mallory', 'free'),
		('dave', 'free');`+insert+insertOther+fmt.Sprintf(`
		INSERT INTO rate_limit_users (user_id, tier) SELECT 'u' || i, 'free' FROM generate_series(1, %d) AS i;
		SELECT rate_limit_rule('closed', action => 'block', paths => '{/closed/*}');
		SELECT rate_limit_rule('plan', tiers => '{free}', algorithm => 'fixed_window', per_day => %d,
		durable => true);
		INSERT INTO rate_limit_bans (network) VALUES ('127.0.0.9');
		INSERT INTO rate_limit_bans (user_id) VALUES ('mallory');
		INSERT INTO rate_limit_bans (key_id) VALUES (7);`, *restoreUsers, limit))
	urls := governedBy(t, dsn, object{"onError": "deny"})
	awaitPolicyApplied(t, dsn, len(urls))
	folder := t.TempDir()
	backup, policyBackup := filepath.Join(folder, "limits.dump"), filepath.Join(folder, "policy.dump")
	shut := askShutOut(t, urls, banned, ofBanned)
	limited := askOften(t, requestsAsUser(t, urls, "dave"))
	askOften(t, requestsAsUser(t, urls, "carol"))
	await(t, "the limit", func() bool { return byStatus(limited.take())[429] > 0 })
	restoreTool(t, "pg_dump", "-Fc", "-d", dsn, "-f", backup)
	restoreTool(t, "pg_dump", append([]string{"-Fc", "-f", policyBackup}, dataOfPolicy(dsn)[2:]...)...)
	load := &restoreLoad{dsn: dsn, urls: urls, shut: shut, limited: limited, limit: limit}
	for _, way := range restoreWays(dsn, backup, policyBackup) {
		for range *restoreRounds {
			load.restore(t, way)
		}
	}
}

// restoreWay is a way to restore a backup.
type restoreWay struct {
	name   string
	before string // SQL that empties the tables before the restore; "" if pg_restore does so
	args   []string
}

// restoreWays returns the ways to restore a backup of everything, and one of the policy's data.
func restoreWays(dsn, backup, policyBackup string) []restoreWay {
	ofPolicy := dataOfPolicy(dsn)
	disable := ""
	for _, table := range policyTables {
		disable += "ALTER TABLE " + table + " DISABLE TRIGGER ALL; "
	}
	return []restoreWay{
		{"-1 --clean", "", []string{"-1", "--clean", "-d", dsn, backup}},
		{"--clean", "", []string{"--clean", "--if-exists", "-d", dsn, backup}},
		{"--clean --disable-triggers", "", []string{"--clean", "--if-exists", "--disable-triggers", "-d", dsn,
			backup}},
		{"--clean -j 4", "", []string{"--clean", "--if-exists", "-j", "4", "-d", dsn, backup}},
		{"-a --disable-triggers", disable + "TRUNCATE " + strings.Join(policyTables, ", "),
			append(ofPolicy, policyBackup)},
		{"-a --disable-triggers -j 4", disable + "TRUNCATE " + strings.Join(policyTables, ", "),
			append(append([]string{"-j", "4"}, ofPolicy...), policyBackup)},
	}
}

// dataOfPolicy returns the arguments of pg_dump and pg_restore for the data of the policy alone.
func dataOfPolicy(dsn string) []string {
	ofPolicy := []string{"-a", "--disable-triggers", "-d", dsn}
	for _, table := range policyTables {
		ofPolicy = append(ofPolicy, "-t", table)
	}
	return ofPolicy
}

// restoreLoad is the load while a backup is restored.
type restoreLoad struct {
	dsn     string
	urls    []string
	shut    *askers
	limited *askers
	limit   int
}

// restore creates a rule and restores a backup that lacks the rule. It checks that bans, block rules and the
// limit hold meanwhile.
func (l *restoreLoad) restore(t *testing.T, way restoreWay) {
	t.Helper()
	cluster.Execute(t, l.dsn, "SELECT rate_limit_rule('later', action => 'block', paths => '{/later}')")
	for _, url := range l.urls {
		await(t, "the rule that the backup lacks",
			func() bool { return harness.Ask(t, harness.Get(url+"/later")).Status == 403 })
	}
	l.shut.take()
	l.limited.take()
	if way.before != "" {
		cluster.Execute(t, l.dsn, way.before)
	}
	restoreTool(t, "pg_restore", way.args...)
	if way.before == "" {
		awaitRestored(t, l.dsn, l.urls)
	} else {
		// The triggers log this change, so proxies read the restored policy.
		cluster.Execute(t, l.dsn, "UPDATE rate_limit_rules SET comment = 'restored'")
	}
	passed := 0
	await(t, "the limit", func() bool {
		responses := byStatus(l.limited.take())
		passed += responses[200]
		return responses[200] == 0 && responses[429] > 0
	})
	shutOut := l.shut.take()
	refused := byStatus(shutOut)[403]
	for kind, statuses := range shutOut {
		if delete(statuses, 403); len(statuses) == 0 {
			delete(shutOut, kind)
		}
	}
	if passed > l.limit {
		t.Errorf("%s: %d requests of the limited user passed, want %d at most", way.name, passed, l.limit)
	}
	if refused == 0 || len(shutOut) > 0 {
		t.Errorf("%s: %d requests are refused with 403, and other statuses are %v, want none", way.name,
			refused, shutOut)
	}
}

// awaitRestored waits until rate_limit_proxies shows all proxies as current, and checks that they apply the
// policy of the backup.
func awaitRestored(t *testing.T, dsn string, urls []string) {
	t.Helper()
	await(t, "nodes", func() bool {
		conn, err := pgx.Connect(t.Context(), dsn)
		if err != nil {
			return false
		}
		defer conn.Close(context.Background())
		var live, current int // the registry's rows in the backup disappear after a while
		err = conn.QueryRow(t.Context(), `SELECT count(*), count(*) FILTER (WHERE behind = 0)
			FROM rate_limit_proxies WHERE live`).Scan(&live, &current)
		return err == nil && live == len(urls) && current == live
	})
	for _, url := range urls {
		if a := harness.Ask(t, harness.Get(url+"/later")); a.Status == 403 {
			t.Errorf("%s: status 403 by a rule that the backup lacks, although the proxy is current", url)
		}
	}
}

// restoreTool runs a program of Postgres, and retries after a deadlock with a proxy.
func restoreTool(t *testing.T, name string, args ...string) {
	t.Helper()
	for end := time.Now().Add(5 * time.Minute); ; {
		out, err := exec.Command(cluster.Tool(t, name), args...).CombinedOutput()
		if err == nil {
			return
		}
		if !strings.Contains(string(out), "deadlock detected") || time.Now().After(end) {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
		t.Logf("%s: retried after a deadlock with a proxy", name)
	}
}
