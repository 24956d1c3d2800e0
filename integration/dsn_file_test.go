package integration

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// A file that holds the DSN is read again for each new connection, which then has the new password or role.
// So is the password file of the policy's DSN, which is mounted as Kubernetes does. Limits, rules and the
// page continue without a reload.
func TestChangedPasswordInFileIsUsed(t *testing.T) {
	server := cluster.Private(t, cluster.Options{HBA: "local all all trust\nhost all postgres 127.0.0.1/32 " +
		"trust\nhost all all 127.0.0.1/32 scram-sha-256\n"})
	dsn := server.DSN("postgres")
	cluster.Execute(t, dsn, schema.File+`; CREATE ROLE first SUPERUSER LOGIN PASSWORD 'one';
		CREATE ROLE second SUPERUSER LOGIN PASSWORD 'two'`)
	dir := t.TempDir()
	limits, policy, passfile := filepath.Join(dir, "limits"), filepath.Join(dir, "policy"),
		filepath.Join(dir, "passfile")
	change := func(user, password string) {
		t.Helper()
		const text = "postgres://%s@127.0.0.1:%d/postgres?sslmode=disable"
		secret, link := filepath.Join(dir, user+password), filepath.Join(dir, "link")
		err := errors.Join(
			os.WriteFile(limits, fmt.Appendf(nil, text, user+":"+password, server.Port()), 0o600),
			os.WriteFile(policy, fmt.Appendf(nil, text+"&passfile=%s\n", user, server.Port(), passfile),
				0o600),
			os.WriteFile(secret, fmt.Appendf(nil, "*:*:*:%s:%s\n", user, password), 0o600),
			os.Chmod(secret, 0o440), os.Symlink(secret, link), os.Rename(link, passfile))
		if err != nil {
			t.Fatal(err)
		}
		cluster.Execute(t, dsn, `SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
			WHERE usename IN ('first', 'second')`)
	}
	change("first", "one")
	limit := func(name, settings string) object {
		return object{"prefix": "PROXY", "limit": "1000 1h", settings: name,
			"policy": object{settings: policy}}
	}
	c := startCaddy(t, "{file."+limits+"}", route{path: "/", limit: object{"prefix": "PROXY",
		"limit": "1000 1h", "policy": object{"dsn": "{file." + policy + "}"}}})
	tr := startTraefik(t, []route{{path: "/", limit: limit(limits, "dsnFile")}})
	page := harness.FreeAddress(t)
	harness.Start(t, harness.Program{Name: "the page", Path: buildCaddy(t), Dir: dir,
		Args: []string{"pg-ratelimit", "page", "--listen", page, "--dsn",
			"{file." + limits + "}"}}).AwaitAddress(t, page)
	for i, login := range [][2]string{{"first", "one"}, {"first", "three"}, {"second", "two"}} {
		if i == 1 {
			cluster.Execute(t, dsn, "ALTER ROLE first PASSWORD 'three'")
		}
		user, password := login[0], login[1]
		as := " as " + user + " with " + password
		change(user, password)
		cluster.Execute(t, dsn, fmt.Sprintf(`SELECT rate_limit_rule('rule-%d', action => 'block',
			paths => '{/%d}')`, i, i))
		for _, url := range []string{c.url, tr.url} {
			await(t, url+" is limited"+as, func() bool {
				return harness.Ask(t, harness.Get(url+"/open")).Header.Get("X-RateLimit-Limit") == "1000"
			})
			await(t, url+" applies the policy"+as, func() bool {
				return harness.Ask(t, harness.Get(fmt.Sprint(url, "/", i))).Status == http.StatusForbidden
			})
		}
		await(t, "a response of the page"+as,
			func() bool { return statusesOf(t, 1, "http://"+page+"/metrics") == "200" })
	}
}
