package pgwire

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestDSNErrors(t *testing.T) {
	dir := t.TempDir()
	junk, encrypted := filepath.Join(dir, "junk.pem"), filepath.Join(dir, "encrypted.pem")
	for path, text := range map[string]string{
		junk:      "nothing of the kind",
		encrypted: "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	certs := func(cert, key string) string { return "host=h sslcert=" + cert + " sslkey=" + key }
	for _, c := range []struct{ dsn, want string }{
		{"nonsense", "dsn must be a postgres:// URL or name=value pairs"},
		{"host=h nonsense", "name=value pairs"},
		{"mysql://u:p@h/d?a=b", "name=value pairs"},
		{"host=h a b=c", "name=value pairs"},
		{"=x", "name=value pairs"},
		{"a\x00b", "NUL"},
		{"host='h", "host in the dsn has a quote that is not closed"},
		{`host='h\`, "host in the dsn has a quote that is not closed"},
		{"postgres://u:p%zz@h",
			"password in the dsn's URL holds a % without two hexadecimal digits after it"},
		{"postgres://u:p%00@h", "password in the dsn's URL holds %00"},
		{"postgres://u:p q@h", "password in the dsn's URL holds a space"},
		{"postgres://u@[::1", "IPv6"},
		{"postgres://u@[]/", "IPv6"},
		{"postgres://u@[::1]x/", "IPv6"},
		{"postgres://h/d?a", "name=value pairs"},
		{"postgres://h/d?a=b=c", "name=value pairs"},
		{"postgres://h/d?a%2=b", "parameter's name"},
		{"postgres://h/d?a-b=c", "parameter's name must be letters"},
		{"postgres://h/d?=c", "without a name"},
		{"postgres://h/d?ssl=yes", `ssl is "yes", must be empty`},
		{"postgres://u:p@ss@h/d", `second "@"`},
		{"postgres://u@h:x/d", `port is "x", must be a number from 1 to 65535`},
		{"host=h port=0", `port is "0", must be a number from 1 to 65535`},
		{"host=h port=65536", `port is "65536"`},
		{"host=h port=1,2", `port is "1,2", must be one port, or 1, as many as there are hosts`},
		{"host=a,b,c port=1,2", "or 3, as many as there are hosts"},
		{"sslmode=verify-ca", `sslmode verify-ca needs an sslrootcert`},
		{"sslmode=on",
			`sslmode is "on", must be one of disable, allow, prefer, require, verify-ca, verify-full`},
		{"sslmode=require sslrootcert=system", `sslmode is "require", must be one of verify-full`},
		{"host=h sslrootcert=" + dir + "/none", "sslrootcert: open"},
		{"host=h sslrootcert=" + junk, "must be a PEM file with certificates"},
		{"host=h sslcert=" + junk, "sslcert and sslkey must be given together"},
		{certs(dir+"/none", junk), "/none: no such file"},
		{certs(junk, dir+"/none"), "/none: no such file"},
		{certs(junk, junk), "must be a certificate and its key"},
		{certs(junk, encrypted), "must not be encrypted"},
		{"sslcertmode=require", `sslcertmode is "require", must be one of allow`},
		{"sslnegotiation=direct", `sslnegotiation is "direct", must be one of postgres`},
		{"hostaddr=x", `hostaddr is "x", must be empty`},
		{"gssencmode=require", `gssencmode is "require", must be one of disable, prefer`},
		{"ssl_min_protocol_version=TLSv1.3", "must be one of TLSv1.2"},
		{"client_encoding=LATIN1", `client_encoding is "LATIN1", must be one of UTF8`},
		{"target_session_attrs=master",
			`must be one of any, read-write, primary`},
		{"connect_timeout=1s", `connect_timeout is "1s", must be a whole number from 0`},
		{"connect_timeout=-1", `connect_timeout is "-1"`},
		{"channel_binding=x", `channel_binding is "x", must be one of prefer, disable, require`},
		{"require_auth=md5", `require_auth is "md5", must be empty: it is not supported`},
		{"pool_max_conns=0", `pool_max_conns is "0", must be a whole number from 1`},
		{"pool_max_conn_lifetime=1", `pool_max_conn_lifetime is "1", must be a duration`},
	} {
		p, err := Open(c.dsn, Options{LookupEnv: noEnv})
		if err == nil {
			p.Close()
			t.Errorf("%q: no error; want %q", c.dsn, c.want)
		} else if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q:\n %v\nwant\n %s", c.dsn, err, c.want)
		}
	}
}

// TestDSNErrorsKeepSecrets puts a password where passwords go, or are put by
// mistake, into strings that do not parse.
func TestDSNErrorsKeepSecrets(t *testing.T) {
	const secret = "Xsecret1"
	for _, dsn := range []string{
		"postgres://u:Xsecret1@h:x/d", "postgres://u:Xsecret1@h/d?sslmode=x", "postgres://u:Xsecret1%zz@h/d",
		"postgres://u:Xsecret1/@h/d", "postgres://u:a/Xsecret1@h/d", "postgres://u:1/Xsecret1@h/d",
		"postgres://u:a@Xsecret1@h/d", "postgres://u:Xsecret1@a@h:y/d", "postgres://u:Xsecret1/d",
		"postgres://u:Xsecret1?a=b",
		"postgres://u:Xsecret1:5432/d", "postgres://u:Xsecret1,h/d", "postgres://u:Xsecret1?user=v",
		"postgres://u:Xsecret1/d?user=v@w", "postgres://u:a?sslmode=Xsecret1@h/d?x",
		"postgres://u:a/b?sslmode=Xsecret1@h/d", "postgres://u@h/d?password=Xsecret1%zz",
		"postgres://u@h/d?password=Xsecret1=x",
		"postgres://u@h:x/d?password=Xsecret1", "postgre://u:Xsecret1@h/d",
		"postgre://u:Xsecret1@h/d?sslmode=disable",
		"//u:Xsecret1@h", "password=Xsecret1 x", "password='Xsecret1", "password=a Xsecret1",
		"password='a'Xsecret1 port=x",
		"password=a Xsecret1 port=1", "password=a Xsecret1=x y", "password=Xsecret1 sslmode=x", "Xsecret1",
		"Xsecret1 password=x",
		"password='Xsecret1\\", "sslmode=disablepassword=Xsecret1", "host=h sslrootcert=/xpassword=Xsecret1",
		"service=apassword=Xsecret1 a=b",
		"sslpassword=Xsecret1 port=x", "passwordXsecret1", "password Xsecret1", "postgres://u:Xsecret1@h\x00",
	} {
		p, err := Open(dsn, Options{LookupEnv: noEnv})
		if err == nil {
			p.Close()
			t.Errorf("%q: no error", dsn)
			continue
		}
		if strings.Contains(err.Error(), secret) {
			t.Errorf("%q: %v", dsn, err)
		}
	}
}

func TestDSNEnvironment(t *testing.T) {
	all := env("PGHOST", "eh", "PGPORT", "7", "PGUSER", "eu", "PGPASSWORD", "ep", "PGDATABASE", "ed",
		"PGSSLMODE", "disable",
		"PGAPPNAME", "ea", "PGCONNECT_TIMEOUT", "4", "PGTARGETSESSIONATTRS", "any", "PGOPTIONS", "-c a=b",
		"PGPASSFILE", "/p")
	c, err := parseConfig("", all, nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.targets[0] != (target{host: "eh", port: "7"}) || c.user != "eu" || c.password != "ep" ||
		c.dbname != "ed" || c.tls.mode != "disable" ||
		c.attemptTimeout != 4*time.Second || c.passfile != "/p" {
		t.Errorf("%+v", c)
	}
	if want := map[string]string{"application_name": "ea",
		"options": "-c a=b"}; !reflect.DeepEqual(c.settings, want) {
		t.Errorf("settings %v", c.settings)
	}
	// The connection string wins, even with nothing in it.
	c, err = parseConfig("host=h port='' user=u dbname=d password=p connect_timeout=", all, nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.targets[0] != (target{host: "h", port: "5432"}) || c.user != "u" || c.password != "p" ||
		c.dbname != "d" || c.attemptTimeout != 0 {
		t.Errorf("%+v", c)
	}
	if _, err := parseConfig("", env("PGSSLMODE", "maybe"), nil); err == nil ||
		!strings.Contains(err.Error(), `sslmode is "maybe"`) {
		t.Errorf("PGSSLMODE: %v", err)
	}
	if c, err = parseConfig("host=h", noEnv, nil); err != nil || c.user == "" {
		t.Errorf("the account's name is the default user: %v", err)
	}
}

func TestPassfile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pass")
	text := "# comment:1:2:3:4\n" +
		"h1:5432:d:u:one\r\n" +
		`h\:2:*:*:u:t\:w\\o:rest` + "\n" +
		"short:line\n" +
		"localhost:5432:d:u:socket\n" +
		"*:9:*:v:any\n" +
		"h5:5432:u:u:database is user\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var logged []string
	c := &config{passfile: path, user: "u", dbname: "d", log: func(s string) { logged = append(logged, s) }}
	for _, k := range []struct {
		t            target
		user, dbname string
		want         string
	}{
		{target{host: "h1", port: "5432"}, "u", "d", "one"},
		{target{host: "h1", port: "5433"}, "u", "d", ""},
		{target{host: "h1", port: "5432"}, "U", "d", ""},
		{target{host: "h:2", port: "1"}, "u", "x", `t:w\o`},
		{target{host: "x", port: "1"}, "u", "x", ""},
		{target{host: "/var/run", port: "5432"}, "u", "d", "socket"},
		{target{host: "other", port: "9"}, "v", "d", "any"},
		{target{host: "h5", port: "5432"}, "u", "", "database is user"},
	} {
		c.user, c.dbname = k.user, k.dbname
		if got := c.passwordFor(k.t); got != k.want {
			t.Errorf("%v %s %s: %q, want %q", k.t, k.user, k.dbname, got, k.want)
		}
	}
	c.password = "given"
	if got := c.passwordFor(target{host: "h1", port: "5432"}); got != "given" {
		t.Errorf("the connection string's password: %q", got)
	}
	c.password, c.user, c.dbname = "", "u", "d"
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if got := c.passwordFor(target{host: "h1", port: "5432"}); got != "" || len(logged) != 1 ||
		!strings.Contains(logged[0], "0600") {
		t.Errorf("a file that others may read: %q, %q", got, logged)
	}
	c.passfile = path + "none"
	if got := c.passwordFor(target{host: "h1", port: "5432"}); got != "" || len(logged) != 1 {
		t.Errorf("a file that is not there: %q, %q", got, logged)
	}
}
