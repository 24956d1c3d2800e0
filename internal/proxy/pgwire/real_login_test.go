package pgwire

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/pgdb"
)

// TestLoginToAServer logs in to a real server in every way that it supports.
func TestLoginToAServer(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	serverCert, serverKey := ca.issuePEM(t, "server", "127.0.0.1")
	c := cluster.Private(t, cluster.Options{
		Files: map[string][]byte{"test.crt": serverCert, "test.key": serverKey,
			"test.ca": pemOf("CERTIFICATE", ca.cert.Raw)},
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
	admin := open(t, c.DSN("postgres"), Options{})
	literal := strings.ReplaceAll(password, "'", "''")
	err := admin.Exec(within(t, longTime), `
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
	clientCert, clientKey := ca.issuePEM(t, "by_cert")
	cert := " sslcert=" + ca.write(t, "client.crt", clientCert) + " sslkey=" +
		ca.write(t, "client.key", clientKey)
	strangerCert, strangerKey := other.issuePEM(t, "by_cert")
	stranger := " sslcert=" + other.write(t, "client.crt", strangerCert) + " sslkey=" +
		other.write(t, "client.key", strangerKey)
	passfile := ca.write(t, "pass",
		[]byte("127.0.0.1:*:postgres:by_scram:"+strings.NewReplacer(`\`, `\\`, `:`,
			`\:`).Replace(password)+"\n"))
	pass := " password=" + quote(password, true)
	home := t.TempDir() // its root.crt is that of the other authority
	if err := os.MkdirAll(filepath.Join(home, ".postgresql"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(home, ".postgresql", "root.crt"),
		pemOf("CERTIFICATE", other.cert.Raw), 0o600); err != nil {
		t.Fatal(err)
	}
	root, wrongRoot := " sslrootcert="+ca.file, " sslrootcert="+other.file
	for _, l := range []struct {
		name, dsn string
		env       []string
		want      string // "tls", "plain" or an error
	}{
		{"trust", "user=postgres sslmode=disable", nil, "plain"},
		{"socket", "user=postgres sslmode=verify-full host=" + c.SocketDir(), nil, "plain"},
		{"password", "sslmode=disable user=by_password" + pass, nil, "plain"},
		{"md5", "sslmode=disable user=by_md5" + pass, nil, "plain"},
		{"SCRAM", "sslmode=disable user=by_scram" + pass, nil, "plain"},
		{"SCRAM in TLS", "sslmode=require user=by_scram" + pass, nil, "tls"},
		{"SCRAM bound", "sslmode=require channel_binding=require user=by_scram" + pass, nil, "tls"},
		{"SCRAM cannot be bound", "sslmode=disable channel_binding=require user=by_scram" + pass, nil,
			"channel_binding is require"},
		{"md5 cannot be bound", "sslmode=require channel_binding=require user=by_md5" + pass, nil,
			"channel_binding=require wants"},
		{"passfile", "sslmode=disable user=by_scram passfile=" + passfile, nil, "plain"},
		{"no password", "sslmode=disable user=by_scram", nil,
			"asks for a password (method scram-sha-256) and there is none"},
		{"wrong password", "sslmode=disable user=by_scram password=sEcReT", nil,
			`FATAL: password authentication failed for user "by_scram" (SQLSTATE 28P01)`},
		{"an unknown user", "sslmode=disable user=nobody password=sEcReT", nil, "SQLSTATE 28000"},
		{"no such database", "sslmode=disable user=postgres dbname=nowhere", nil,
			`database "nowhere" does not exist (SQLSTATE 3D000)`},
		{"a setting", "sslmode=disable user=postgres search_path=x work_mem=1MB", nil, "plain"},
		{"prefer", "user=postgres sslmode=prefer", nil, "tls"},
		{"allow", "user=postgres sslmode=allow", nil, "plain"},
		{"allow, and must", "user=only_tls sslmode=allow", nil, "tls"},
		{"disable, but must", "user=only_tls sslmode=disable", nil, "SQLSTATE 28000"},
		{"verify-full", "user=only_tls sslmode=verify-full" + root, nil, "tls"},
		{"verify-full by a wrong name", "user=only_tls sslmode=verify-full host=localhost" + root,
			nil, "localhost"},
		{"verify-ca by a wrong name", "user=only_tls sslmode=verify-ca host=localhost" + root, nil, "tls"},
		{"verify-full, unknown authority", "user=only_tls sslmode=verify-full" + wrongRoot, nil,
			"unknown authority"},
		{"require with an authority at home", "user=only_tls sslmode=require", []string{"HOME", home},
			"unknown authority"},
		{"the system's authorities", "user=only_tls sslrootcert=system", nil, "unknown authority"},
		{"a client's certificate", "user=by_cert sslmode=verify-full" + root + cert, nil, "tls"},
		{"without a certificate", "user=by_cert sslmode=verify-full" + root, nil, "SQLSTATE 28000"},
		{"a certificate of another authority", "user=by_cert sslmode=verify-full" + root + stranger, nil,
			"unknown certificate authority"},
	} {
		t.Run(l.name, func(t *testing.T) {
			dsn := fmt.Sprintf("host=127.0.0.1 port=%d dbname=postgres ", c.Port()) + l.dsn
			p := open(t, dsn, Options{LookupEnv: env(l.env...)})
			st := stmt("SELECT ssl::int::bigint FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
			err := p.Run(within(t, longTime), []*pgdb.Statement{st})
			got := ""
			switch {
			case err != nil:
				got = err.Error()
			case st.Err != nil || len(st.Result) != 12:
				t.Fatal(st.Err, st.Result)
			default:
				got = []string{"plain", "tls"}[st.Result[11]]
			}
			wantError := l.want != "plain" && l.want != "tls"
			if (err != nil) != wantError || !strings.Contains(got, l.want) {
				t.Errorf("%s\nwant %s", got, l.want)
			}
			if strings.Contains(got, "sEcReT") || strings.Contains(got, password) {
				t.Error("the password is in the error")
			}
			if err != nil {
				return
			}
			for i := 0; i < 3; i++ {
				run(t, p, stmt("SELECT 1"), stmt("SELECT $1::text[]", []string{"x"}))
			}
		})
	}
	t.Run("cancel in TLS", func(t *testing.T) {
		p := open(t, fmt.Sprintf("host=127.0.0.1 port=%d dbname=postgres user=only_tls sslmode=verify-full",
			c.Port())+root, Options{})
		st := stmt("SELECT pg_sleep(600) /* slow */")
		ctx, cancel := context.WithCancel(within(t, longTime))
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx, []*pgdb.Statement{st}) }()
		running := func() bool {
			return number(t, admin, "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%/* slow */%' "+
				"AND wait_event = 'PgSleep'") > 0
		}
		await.Within(t, longTime, "it runs on the server", running)
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		await.Within(t, longTime, "it ends on the server", func() bool { return !running() })
	})
}

// number runs a statement that has one row of one bigint.
func number(t testing.TB, p *Pool, sql string) int64 {
	t.Helper()
	st := stmt(sql)
	run(t, p, st)
	if len(st.Result) != 12 {
		t.Fatalf("%s: %q", sql, st.Result)
	}
	return int64(binary.BigEndian.Uint64(st.Result[4:]))
}
