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
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

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

// rehearseTLS has the certificates of a client and of the server run out, and a password changed. New
// connections use the renewed files without a restart of a proxy.
func rehearseTLS(t *testing.T) {
	r := newRehearsal(t)
	ca := newRehearsedCA(t, r)
	serverCert, serverKey := ca.issue("server", "localhost", time.Hour)
	clientCert, clientKey := ca.issue("client", "by_cert", time.Hour)
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
	answer := func(path string, status int) {
		t.Helper()
		for _, url := range []string{c.url, tr.url} {
			await(t, fmt.Sprint(status, " at ", url, path), func() bool {
				return harness.Ask(t, harness.Get(url+path)).Status == status
			})
		}
	}
	end := func(role string) {
		t.Helper()
		cluster.Query[int64](t, r.server("PGPORT"),
			"SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = $1", role)
	}
	for path := range dsns {
		answer(path, http.StatusOK)
	}
	for _, certificate := range []struct{ file, name, why string }{
		{"client", "by_cert", "certificate"}, {"server", "localhost", "expired"},
	} {
		ca.issue(certificate.file, certificate.name, -time.Minute)
		r.page("Passwords and certificates", 0)
		end("by_cert")
		answer("/cert", http.StatusServiceUnavailable)
		await(t, certificate.why+" in the logs", func() bool {
			return strings.Contains(c.Log(), certificate.why) && strings.Contains(tr.Log(), certificate.why)
		})
		ca.issue(certificate.file, certificate.name, time.Hour)
		r.page("Passwords and certificates", 0)
		answer("/cert", http.StatusOK)
	}
	r.page("Passwords and certificates", 1)
	end("by_password")
	answer("/password", http.StatusOK)
}
