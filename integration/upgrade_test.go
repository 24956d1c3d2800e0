package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/sqltest"
)

// run runs a program that must succeed, and returns its output.
func run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", filepath.Base(name), strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// baselineTree returns a worktree of the commit that numbered the tables. It needs the history of the
// repository.
func baselineTree(t *testing.T) string {
	t.Helper()
	commit := run(t, "..", "git", "log", "-1", "--format=%H", "--", "internal/schema/0001_baseline.sql",
		"internal/schema/0001_baseline.shards.sql")
	if commit == "" {
		t.Fatal("the history has no commit with the first tables: clone it in full")
	}
	return treeOf(t, commit)
}

// treeOf returns a worktree of a commit.
func treeOf(t *testing.T, commit string) string {
	t.Helper()
	tree := filepath.Join(t.TempDir(), "tree")
	run(t, "..", "git", "worktree", "add", "--detach", tree, commit)
	t.Cleanup(func() { run(t, "..", "git", "worktree", "remove", "--force", tree) })
	return tree
}

// laterFile is a numbered file of a later version: one more table of the policy with a trigger, one more
// column, and a function with another result.
const laterFile = `CASE WHEN state.number < 99 THEN $file$
CREATE TABLE rate_limit_things (thing text PRIMARY KEY);
--;
CREATE TRIGGER rate_limit_log_insert AFTER INSERT ON rate_limit_things EXECUTE FUNCTION
	rate_limit_log_changes();
--;
ALTER TABLE rate_limit_rules ADD COLUMN countries text[];
--;
DROP FUNCTION IF EXISTS rate_limit_key_forms(text[]);
--;
$file$ END, `

// laterSQL returns the flag that builds a program of a later version, with a body of a function that differs
// from today's and, if numbered, with laterFile, of the number 99.
func laterSQL(t *testing.T, numbered bool) (flag string) {
	t.Helper()
	path, err := filepath.Abs("../internal/schema/generated.go")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	revision, next := strconv.Itoa(schema.ThisRevision), schema.ThisRevision+1
	changes := [][2]string{{"least(coalesce(sum(v), 0),", "least(0 + coalesce(sum(v), 0),"}}
	const first, forms = "$file$DO $$", // what begins what is made again
		"rate_limit_key_forms(texts text[]) RETURNS "
	if numbered {
		next++
		changes = append(changes, [2]string{first, laterFile + first}, [2]string{forms + "text[]",
			forms + "name[]"}, [2]string{`"tables":[`, `"tables":["rate_limit_things",`})
	}
	for _, before := range []string{"revision = ", "state.revision >= ", "'revision', "} {
		changes = append(changes, [2]string{before + revision, before + strconv.Itoa(next)})
	}
	later := string(text)
	for _, change := range changes {
		if !strings.Contains(later, change[0]) {
			t.Fatalf("generated.go has no %q", change[0])
		}
		later = strings.ReplaceAll(later, change[0], change[1])
	}
	if numbered {
		later = regexp.MustCompile(`('number', |number   = )[0-9]+`).ReplaceAllString(later, "${1}99")
	}
	folder := t.TempDir()
	overlay, _ := json.Marshal(map[string]any{"Replace": map[string]string{path: filepath.Join(folder,
		"later.go")}})
	for name, content := range map[string]string{"later.go": later, "overlay.json": string(overlay)} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return "-overlay=" + filepath.Join(folder, "overlay.json")
}

// pgRatelimit builds the program pg-ratelimit.
func pgRatelimit(t *testing.T, flags ...string) string {
	t.Helper()
	return harness.Build(t, "..", "./admin/cmd/pg-ratelimit", flags...)
}

// checkMends upgrades tables to this version, and then to one that differs in the body of a function. This
// version then changes nothing.
func checkMends(t *testing.T, dsn, today, mended string) {
	t.Helper()
	for i, step := range []struct{ program, want string }{{today, "upgraded"}, {today, "up to date"},
		{mended, "upgraded"}, {mended, "up to date"}, {today, "up to date"}} {
		check.Equal(t, fmt.Sprint("migrate, step ", i), run(t, ".", step.program, "migrate", "--dsn", dsn),
			"tables  "+step.want)
		check.Equal(t, fmt.Sprint("the body is mended, step ", i), cluster.Query[bool](t, dsn,
			"SELECT prosrc LIKE '%(0 + coalesce(sum(v)%' FROM pg_proc WHERE proname = 'rate_limit_counters'"),
			i >= 2)
	}
}

// versionRoutes has a zone, and two sites with the policy of the database.
func versionRoutes() []route {
	governed := func(onError string) object {
		return object{"timeout": "10s", "onError": onError, "policy": object{"user": "{header.X-User}"}}
	}
	return []route{{path: "/zone", limit: object{"prefix": "z", "limit": "100000 1h", "key": "all"}},
		{path: "/allow", limit: governed("allow")}, {path: "/", limit: governed("deny")}}
}

// startVersion starts a Caddy with versionRoutes.
func startVersion(t *testing.T, program, name, dsn string) *proxy {
	t.Helper()
	address := harness.FreeAddress(t)
	config := caddyfile(address, dsn, versionRoutes())
	config = harness.Replace(t, config, "dsn ", "node_name "+name+"\n\t\tdsn ")
	return &proxy{harness.RunCaddy(t, name, program, address, config), "http://" + address}
}

// Programs of the first numbered version, of today and of a later one count together before, during and after
// upgrades, which stop no decision. Rules change from either side, an older migrate changes nothing, a dump
// of either version works under the other, and the older program can come back. After the later version has
// dropped what older ones use, only these are refused, whatever on_error says.
func TestTwoVersionsCountTogether(t *testing.T) {
	tree := baselineTree(t)
	older, later := harness.Caddy(t, tree), harness.Caddy(t, "..", laterSQL(t, true))
	today, mended := pgRatelimit(t), pgRatelimit(t, laterSQL(t, false))
	dsn := cluster.Open(t)
	old := startVersion(t, older, "old", dsn)
	check.Equal(t, "the first request", statusesOf(t, 1, old.url+"/"), "200")
	command := func(program string, args ...string) string {
		return run(t, ".", program, append([]string{"pg-ratelimit", "--dsn", dsn}, args...)...)
	}
	command(older, "rules", "set", "plan", "count_by=all", "algorithm=fixed_window", "per_day=500")
	another := startVersion(t, later, "later", dsn)
	traefik := startTraefik(t, versionRoutes(), "DATABASE_URL="+dsn)
	oldTraefik := startTraefikWith(t, tree, object{}, "INFO", versionRoutes(), "DATABASE_URL="+dsn)
	awaitPolicyApplied(t, dsn, 4)
	await(t, "the later proxy to say that the tables are older", func() bool {
		return cluster.Query[bool](t, dsn, "SELECT count(*) = 1 FROM rate_limit_proxies "+
			"WHERE node = 'later' AND problems::text LIKE '%run caddy pg-ratelimit migrate%'")
	})
	proxies := []string{old.url, another.url, traefik.url, oldTraefik.url}
	dumps := map[string]string{later: dumpOf(t, dsn)} // of a version, by the program that restores it
	var loads sync.WaitGroup
	var result *harness.Result
	loads.Go(func() {
		result = harness.Run(t.Context(), harness.Load{Clients: 8, Requests: 1000,
			Every: 5 * time.Millisecond,
			Request: func(i int) *http.Request {
				return harness.Get(proxies[i%4] + []string{"/", "/allow"}[i/4%2])
			}})
	})
	time.Sleep(time.Second)
	checkMends(t, dsn, today, mended)
	check.Equal(t, "migrate of the later version", command(later, "migrate"), "tables  upgraded")
	loads.Wait()
	if result.Status[http.StatusOK] != 500 || result.Status[http.StatusTooManyRequests] != 500 {
		t.Errorf("of 1000 requests during the upgrade: %v, want 500 times 200, and 429", result)
	}
	check.Equal(t, "migrate of the older version", command(older, "migrate"), "tables  up to date")
	for program, limit := range map[string]string{older: "600000", later: "700000"} {
		command(program, "rules", "set", "plan", "per_day="+limit)
		for _, url := range proxies {
			await(t, url+" to have the limit "+limit, func() bool {
				return harness.Ask(t, harness.Get(url+"/")).Header.Get("X-RateLimit-Limit") == limit
			})
		}
	}
	if err := another.Stop(); err != nil {
		t.Fatal(err)
	}
	dumps[older] = dumpOf(t, dsn)
	for program, dump := range dumps {
		checkRestores(t, program, dump)
	}
	back := startVersion(t, older, "back", dsn)
	check.Equal(t, "the older version again", statusesOf(t, 1, back.url+"/"), "200")
	last := startVersion(t, later, "last", dsn)
	cluster.Execute(t, dsn, sqltest.Says(`"oldest": [0-9]+`, `"oldest": 99`))
	for _, url := range []string{old.url, back.url, traefik.url, oldTraefik.url} {
		checkRefusesTables(t, url)
	}
	check.Equal(t, "the later version", statusesOf(t, 1, last.url+"/"), "200")
}

// dumpOf dumps a database into a file.
func dumpOf(t *testing.T, dsn string) (file string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "dump")
	restoreTool(t, "pg_dump", "-Fc", "-d", dsn, "-f", file)
	return file
}

// checkRestores restores a dump of the other version, under which a program then decides.
func checkRestores(t *testing.T, program, dump string) {
	t.Helper()
	dsn := cluster.Open(t)
	restoreTool(t, "pg_restore", "--exit-on-error", "-d", dsn, dump)
	restored := startVersion(t, program, "restored", dsn)
	check.Equal(t, "a dump of the other version", statusesOf(t, 1, restored.url+"/"), "200")
}

// checkRefusesTables checks that a proxy refuses all requests that need the policy, and counts on in its
// zone.
func checkRefusesTables(t *testing.T, url string) {
	t.Helper()
	await(t, url+" to refuse the tables", func() bool { return statusesOf(t, 1, url+"/") == "503" })
	check.Equal(t, "on_error allow", statusesOf(t, 1, url+"/allow"), "503")
	check.Equal(t, "a zone", statusesOf(t, 1, url+"/zone"), "200")
	check.Equal(t, "Retry-After", harness.Ask(t, harness.Get(url+"/")).Header.Get("Retry-After"), "10")
}
