//go:build rehearse

package integration

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/authority"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// rehearsedCA issues certificates and stores them as files of the server.
type rehearsedCA struct {
	*authority.Authority
	r *rehearsal
}

// issue replaces the files of a certificate and its key.
func (ca rehearsedCA) issue(file, name string, validity time.Duration) (cert, key string) {
	certPEM, keyPEM := ca.Issue(ca.r.t, name, validity, name, "localhost", "127.0.0.1")
	return ca.r.file(file+".crt", certPEM), ca.r.file(file+".key", keyPEM)
}

// file writes a file of the account of the server and returns its path.
func (r *rehearsal) file(name string, data []byte) string {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	err := os.WriteFile(path, data, 0o600)
	if err == nil && r.account != nil {
		err = os.Chown(path, int(r.account.Uid), int(r.account.Gid))
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return path
}

// rehearseTLS lets the certificates of a client and of the server expire, and changes a password. New
// connections use the renewed files without a restart of a proxy.
func rehearseTLS(t *testing.T) {
	r := newRehearsal(t)
	ca := rehearsedCA{authority.New(t), r}
	root := r.file("ca.crt", ca.PEM)
	serverCert, serverKey := ca.issue("server", "localhost", time.Hour)
	clientCert, clientKey := ca.issue("client", "by_cert", time.Hour)
	passfile := r.file("passfile", []byte("*:*:*:by_password:first\n"))
	r.env = append(r.env, "PASSFILE="+passfile, "ROLE=by_password", "NEW_PASSWORD=second")
	r.sh("TLS", fmt.Sprintf(`cd "$PGDATA"
{ echo 'hostssl all by_cert 127.0.0.1/32 cert'; echo 'hostssl all by_password 127.0.0.1/32 scram-sha-256'
 echo 'host all by_cert,by_password all reject'; cat pg_hba.conf; } > new
mv new pg_hba.conf
psql -c "ALTER SYSTEM SET ssl = on" -c "ALTER SYSTEM SET ssl_cert_file = '%s'" \
 -c "ALTER SYSTEM SET ssl_key_file = '%s'" -c "ALTER SYSTEM SET ssl_ca_file = '%s'" \
 -c "SELECT pg_reload_conf()" -c "CREATE ROLE by_cert LOGIN SUPERUSER" \
 -c "CREATE ROLE by_password LOGIN SUPERUSER PASSWORD 'first'"`, serverCert, serverKey, root))
	common := fmt.Sprintf("@localhost:%s/postgres?sslmode=verify-full&sslrootcert=%s", r.variable("PGPORT"),
		root)
	dsns := map[string]string{
		"/cert":     "postgres://by_cert" + common + "&sslcert=" + clientCert + "&sslkey=" + clientKey,
		"/password": "postgres://by_password" + common + "&passfile=" + passfile,
	}
	var routes []route
	for path, dsn := range dsns {
		limit := object{"dsn": dsn, "timeout": "10s", "onError": "deny", "prefix": "tls", "key": "all",
			"limit": "1000000 1h"}
		routes = append(routes, route{path: path, limit: limit})
	}
	c, tr := startCaddy(t, dsns["/cert"], routes...), startTraefik(t, routes)
	awaitStatus := func(path string, status int) {
		t.Helper()
		for _, url := range []string{c.url, tr.url} {
			await(t, fmt.Sprint(status, " at ", url, path), func() bool {
				return harness.Ask(t, harness.Get(url+path)).Status == status
			})
		}
	}
	terminate := func(role string) {
		t.Helper()
		cluster.Query[int64](t, r.server("PGPORT"),
			"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = $1", role)
	}
	for path := range dsns {
		awaitStatus(path, http.StatusOK)
	}
	for _, certificate := range []struct{ file, name, why string }{
		{file: "client", name: "by_cert", why: "certificate"},
		{file: "server", name: "localhost", why: "expired"},
	} {
		ca.issue(certificate.file, certificate.name, -time.Minute)
		r.page("Passwords and certificates", 0)
		terminate("by_cert")
		awaitStatus("/cert", http.StatusServiceUnavailable)
		await(t, certificate.why+" in the logs", func() bool {
			return strings.Contains(c.Log(), certificate.why) && strings.Contains(tr.Log(), certificate.why)
		})
		ca.issue(certificate.file, certificate.name, time.Hour)
		r.page("Passwords and certificates", 0)
		awaitStatus("/cert", http.StatusOK)
	}
	r.page("Passwords and certificates", 1)
	terminate("by_password")
	awaitStatus("/password", http.StatusOK)
}
