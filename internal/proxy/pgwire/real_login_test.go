package pgwire

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/core/pg"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/authority"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// startLoginServer starts a server with a role for each kind of login. values maps the names in
// testdata/logins.txt to their values.
func startLoginServer(t *testing.T) (c *cluster.Cluster, values map[string]string) {
	t.Helper()
	ca, other := authority.New(t), authority.New(t)
	serverCert, serverKey := ca.Issue(t, "server", time.Hour, "127.0.0.1")
	c = cluster.Private(t, cluster.Options{
		Files: map[string][]byte{"test.crt": serverCert, "test.key": serverKey, "test.ca": ca.PEM},
		Config: map[string]string{"ssl": "on", "ssl_cert_file": "test.crt", "ssl_key_file": "test.key",
			"ssl_ca_file": "test.ca"},
		HBA: `local all all trust
host all postgres 127.0.0.1/32 trust
hostssl all by_cert 127.0.0.1/32 cert
host all by_scram 127.0.0.1/32 scram-sha-256
host all by_md5 127.0.0.1/32 md5
host all by_password 127.0.0.1/32 password
hostssl all only_tls 127.0.0.1/32 trust
hostnossl all only_plain 127.0.0.1/32 trust
`,
	})
	const password = `p'ä s\s"w@r:d/%`
	literal := strings.ReplaceAll(password, "'", "''")
	err := open(t, c.DSN("postgres"), Options{}).Exec(t.Context(), testTimeout, `
		SET standard_conforming_strings = on;
		CREATE ROLE by_cert LOGIN; CREATE ROLE only_tls LOGIN; CREATE ROLE only_plain LOGIN;
		SET password_encryption = 'scram-sha-256';
		CREATE ROLE by_scram LOGIN PASSWORD '`+literal+`';
		CREATE ROLE by_password LOGIN PASSWORD '`+literal+`';
		SET password_encryption = 'md5';
		CREATE ROLE by_md5 LOGIN PASSWORD '`+literal+`'`)
	if err != nil {
		t.Fatal(err)
	}
	quoted := strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(password)
	certificate := func(a *authority.Authority) string {
		cert, key := a.Issue(t, "by_cert", time.Hour)
		return "sslcert=" + writeFile(t, cert) + " sslkey=" + writeFile(t, key)
	}
	return c, map[string]string{
		"<CERT>": certificate(ca), "<STRANGER>": certificate(other), "<ROOT>": writeFile(t, ca.PEM),
		"<OTHERROOT>": writeFile(t, other.PEM), "<PASSWORD>": "'" + quoted + "'",
		"<SOCKETS>": c.SocketDir(),
		"<PASSFILE>": writeFile(t, []byte("127.0.0.1:*:postgres:by_scram:"+
			strings.NewReplacer(`\`, `\\`, `:`, `\:`).Replace(password)+"\n")),
		"<SECRET>": password,
	}
}

// writeFile creates a file with data and returns its path.
func writeFile(t *testing.T, data []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Each connection string of testdata/logins.txt connects to a real server in the way that the file says: in
// TLS, without TLS, or not at all, with an error.
func TestLoginToRealServer(t *testing.T) {
	c, values := startLoginServer(t)
	var pairs []string
	for name, value := range values {
		pairs = append(pairs, name, value)
	}
	for _, l := range readLines(t, "logins.txt", pairs...) {
		t.Run(l.text, func(t *testing.T) {
			p := open(t, fmt.Sprintf("host=127.0.0.1 port=%d dbname=postgres ", c.Port())+l.text, Options{})
			st := stmt("SELECT ssl::int::bigint FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
			err := tryRun(t, p, st)
			got := ""
			switch {
			case err != nil:
				got = err.Error()
			case st.Err != nil || len(st.Result) != 12:
				t.Fatalf("error %v, result %q; want nil and one bigint", st.Err, st.Result)
			default:
				got = []string{"plain", "tls"}[st.Result[11]]
			}
			wantError := l.want != "plain" && l.want != "tls"
			if (err != nil) != wantError || !strings.Contains(got, l.want) {
				t.Errorf("got %s, want %s", got, l.want)
			}
			if strings.Contains(got, "sEcReT") || strings.Contains(got, values["<SECRET>"]) {
				t.Errorf("the error %q has the password, want none", got)
			}
			for i := 0; err == nil && i < 3; i++ {
				run(t, p, stmt("SELECT 1"), stmt("SELECT $1::text[]", []string{"x"}))
			}
		})
	}
	t.Run("cancel in TLS", func(t *testing.T) { checkCancelInTLS(t, c, values["<ROOT>"]) })
}

// checkCancelInTLS checks that the server cancels a statement of a session in TLS.
func checkCancelInTLS(t *testing.T, c *cluster.Cluster, root string) {
	p := open(t, fmt.Sprintf("host=127.0.0.1 port=%d dbname=postgres user=only_tls sslmode=verify-full "+
		"sslrootcert=%s", c.Port(), root), Options{})
	admin := open(t, c.DSN("postgres"), Options{})
	st := stmt("SELECT pg_sleep(600) /* slow */")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx, testTimeout, []*pgdb.Statement{st}) }()
	running := func() bool {
		count := stmt("SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%/* slow */%' " +
			"AND wait_event = 'PgSleep'")
		run(t, admin, count)
		numbers := pg.Bigints(count.Result)
		if len(numbers) != 1 {
			t.Fatalf("%s: result %q, want one bigint", count.SQL, count.Result)
		}
		return numbers[0] > 0
	}
	await.Within(t, testTimeout, "the start of the statement on the server", running)
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Run() = %v, want %v", err, context.Canceled)
	}
	await.Within(t, testTimeout, "the end of the statement on the server", func() bool { return !running() })
}
