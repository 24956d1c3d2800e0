//go:build rehearse

package integration

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	within "github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// rehearsedCA is a certificate authority.
type rehearsedCA struct {
	r    *rehearsal
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string // its certificate
}

func newRehearsedCA(t *testing.T, r *rehearsal) *rehearsedCA {
	t.Helper()
	ca := &rehearsedCA{r: r}
	ca.file, _ = ca.issue("ca", "authority", 24*time.Hour)
	return ca
}

// issue replaces the files of a certificate and its key. The first certificate is the authority's.
func (ca *rehearsedCA) issue(file, name string, validity time.Duration) (cert, key string) {
	t := ca.r.t
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		DNSNames: []string{name, "localhost"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(validity),
	}
	parent, signer := ca.cert, ca.key
	if parent == nil {
		template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
		parent, signer = template, private
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &private.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	if ca.cert == nil {
		if ca.cert, err = x509.ParseCertificate(der); err != nil {
			t.Fatal(err)
		}
		ca.key = private
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(ca.r.dir, file+".crt"), filepath.Join(ca.r.dir, file+".key")
	ca.r.file(cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	ca.r.file(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}))
	return cert, key
}

// file writes a file of the account of the server.
func (r *rehearsal) file(path string, text []byte) {
	r.t.Helper()
	err := os.WriteFile(path, text, 0o600)
	if err == nil && r.account != nil {
		err = os.Chown(path, int(r.account.Uid), int(r.account.Gid))
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// rehearseTLS: the certificates of the server and of a client run out while proxies are connected, and a
// password is changed. Open connections go on. New ones use the renewed files without a restart of a proxy.
func rehearseTLS(t *testing.T) {
	r := newRehearsal(t)
	ca := newRehearsedCA(t, r)
	serverCert, serverKey := ca.issue("server", "localhost", time.Hour)
	const valid = 20 * time.Second
	expires := time.Now().Add(valid)
	clientCert, clientKey := ca.issue("client", "by_cert", valid)
	passfile := filepath.Join(r.dir, "passfile")
	r.file(passfile, []byte("*:*:*:by_password:first\n"))
	r.env = append(r.env, "PASSFILE="+passfile, "ROLE=by_password", "NEW_PASSWORD=second")
	r.sh("TLS", fmt.Sprintf(`cd "$PGDATA"
{ echo 'hostssl all by_cert 127.0.0.1/32 cert'; echo 'hostssl all by_password 127.0.0.1/32 scram-sha-256'
 echo 'host all by_cert,by_password all reject'; cat pg_hba.conf; } > new
mv new pg_hba.conf
psql -c "ALTER SYSTEM SET ssl = on" -c "ALTER SYSTEM SET ssl_cert_file = '%s'" \
 -c "ALTER SYSTEM SET ssl_key_file = '%s'" -c "ALTER SYSTEM SET ssl_ca_file = '%s'" \
 -c "SELECT pg_reload_conf()" -c "CREATE ROLE by_cert LOGIN SUPERUSER" \
 -c "CREATE ROLE by_password LOGIN SUPERUSER PASSWORD 'first'"`, serverCert, serverKey, ca.file))
	common := fmt.Sprintf("@localhost:%s/postgres?sslmode=verify-full&sslrootcert=%s", r.variable("PGPORT"),
		ca.file)
	dsns := map[string]string{
		"/cert":     "postgres://by_cert" + common + "&sslcert=" + clientCert + "&sslkey=" + clientKey,
		"/password": "postgres://by_password" + common + "&passfile=" + passfile,
	}
	var routes []route
	for path, dsn := range dsns {
		limit := object{"dsn": dsn, "timeout": "10s", "onError": "deny", "prefix": "tls", "key": "all",
			"limit": "1000000 1h"}
		routes = append(routes, route{path, "", limit})
	}
	c, tr := startCaddy(t, dsns["/cert"], routes...), startTraefik(t, routes)
	r.urls = []string{c.url, tr.url}
	all := func(path string, status int) func() bool {
		return func() bool {
			for _, url := range r.urls {
				if harness.Ask(t, harness.Get(url+path)).Status != status {
					return false
				}
			}
			return true
		}
	}
	admin := r.server("PGPORT")
	end := func(role string) {
		t.Helper()
		cluster.Query[int64](t, admin,
			"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = $1", role)
	}
	back := func(what, path string) {
		t.Helper()
		began, late := time.Now(), within.Lateness()
		await(t, "decisions at "+path, all(path, 200))
		took := time.Since(began)
		if busy := late(); took > 2*time.Second+4*busy {
			t.Errorf("%s: decisions after %v, want 2s at most on a machine that is %v late", what, took, busy)
		} else {
			t.Logf("%s: decisions after %v", what, took)
		}
	}
	lost := func(what, path, why string) {
		t.Helper()
		await(t, what, all(path, 503))
		await(t, why+" in the logs", func() bool {
			return strings.Contains(c.Log(), why) &&
				strings.Contains(tr.Log(), why)
		})
	}
	for path := range dsns {
		await(t, "decisions at "+path, all(path, 200))
	}
	if n := cluster.Query[int64](t, admin, "SELECT count(DISTINCT usename) FROM pg_stat_ssl JOIN "+
		"pg_stat_activity USING (pid) WHERE ssl AND usename IN ('by_cert', 'by_password')"); n != 2 {
		t.Errorf("%d roles are connected with TLS, want 2", n)
	}
	if time.Now().After(expires.Add(-time.Second)) {
		t.Fatal("the certificate ran out before the proxies were connected")
	}

	undecided := r.steadily("/cert")
	time.Sleep(time.Until(expires) + time.Second)
	if n := undecided(); n > 0 {
		t.Errorf("%d requests had no decision while the client's certificate ran out", n)
	}
	end("by_cert")
	lost("the end of decisions with a client's certificate that ran out", "/cert", "certificate")
	ca.issue("client", "by_cert", time.Hour)
	back("a new certificate of the client", "/cert")

	ca.issue("server", "localhost", -time.Minute)
	undecided = r.steadily("/cert", "/password")
	r.page("Passwords and certificates", 0)
	time.Sleep(time.Second)
	if n := undecided(); n > 0 {
		t.Errorf("%d requests had no decision while the server's certificate ran out", n)
	}
	end("by_cert")
	lost("the end of decisions with a server's certificate that ran out", "/cert", "expired")
	ca.issue("server", "localhost", time.Hour)
	r.page("Passwords and certificates", 0)
	back("a new certificate of the server", "/cert")

	undecided = r.steadily("/password")
	r.page("Passwords and certificates", 1)
	time.Sleep(time.Second)
	if n := undecided(); n > 0 {
		t.Errorf("%d requests had no decision while the password was changed", n)
	}
	end("by_password")
	back("a new password", "/password")
}

// steadily sends requests to paths of both proxies until the function that it returns is called, which
// returns how many had another answer than 200.
func (r *rehearsal) steadily(paths ...string) (stop func() int) {
	r.t.Helper()
	var stops []func() int
	for _, path := range paths {
		load := r.load(path, "steady", 5*time.Millisecond)
		stops = append(stops, func() int {
			result := load()
			return result.Sent - result.Status[200]
		})
	}
	return func() (n int) {
		for _, stop := range stops {
			n += stop()
		}
		return n
	}
}
