package pgwire

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestDSNSyntax(t *testing.T) {
	m := func(pairs ...string) map[string]string {
		all := map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			all[pairs[i]] = pairs[i+1]
		}
		return all
	}
	for _, c := range []struct {
		dsn  string
		want map[string]string
	}{
		{"", m()},
		{"  \t\n", m()},
		{"postgres://", m()},
		{"postgresql://localhost", m("host", "localhost")},
		{"postgres://u@h/d", m("user", "u", "host", "h", "dbname", "d")},
		{"postgres://u:p@h:1/d?sslmode=disable", m("user", "u", "password", "p", "host", "h", "port", "1", "dbname", "d", "sslmode", "disable")},
		{"postgres://u:p%40%2f%3A%25@h/", m("user", "u", "password", "p@/:%", "host", "h")},
		{"postgres://u:a:b?c#d@h", m("user", "u", "password", "a:b?c#d", "host", "h")},
		{"postgres://:p@h", m("password", "p", "host", "h")},
		{"postgres://h1:1,h2,h3:3/d", m("host", "h1,h2,h3", "port", "1,,3", "dbname", "d")},
		{"postgres://h1,h2", m("host", "h1,h2", "port", ",")},
		{"postgres://[::1]:5433,[fe80::1%25eth0]/d", m("host", "::1,fe80::1%eth0", "port", "5433,", "dbname", "d")},
		{"postgres:///d?host=/var/run/x&port=6", m("dbname", "d", "host", "/var/run/x", "port", "6")},
		{"postgres://%2Fvar%2Frun/d", m("host", "/var/run", "dbname", "d")},
		{"postgres://h?application_name=a+b%20c&", m("host", "h", "application_name", "a+b c")},
		{"postgres://h/d?a=1&a=2", m("host", "h", "dbname", "d", "a", "2")},
		{"postgres://h/d?ssl=true", m("host", "h", "dbname", "d", "sslmode", "require")},
		{"postgres://h/d?ssl=true&sslmode=disable", m("host", "h", "dbname", "d", "sslmode", "disable")},
		{"postgres://h/d?sslmode=disable&ssl=true", m("host", "h", "dbname", "d", "sslmode", "require")},
		{"postgres://h/d?password=p@ss", m("host", "h", "dbname", "d", "password", "p@ss")},
		{"host=h port=1 dbname=d user=u password=p", m("host", "h", "port", "1", "dbname", "d", "user", "u", "password", "p")},
		{" host = h\n port\t= 1 ", m("host", "h", "port", "1")},
		{"database=d", m("dbname", "d")},
		{`password='a b\'c\\d' user=u`, m("password", `a b'c\d`, "user", "u")},
		{`password='it''s'x=1`, nil},
		{`password=a\ b\'c\\ user=u`, m("password", `a b'c\`, "user", "u")},
		{`password='' user=u`, m("password", "", "user", "u")},
		{`password= user=u`, m("password", "user=u")},
		{`password=`, m("password", "")},
		{`host=a\`, m("host", "a")},
		{`options='-c a=b' search_path=x,y`, m("options", "-c a=b", "search_path", "x,y")},
		{"user= host=h", m("user", "host=h")},
	} {
		got, err := parseDSN(c.dsn)
		if c.want == nil {
			if err == nil {
				t.Errorf("%q: no error, but %v", c.dsn, got)
			}
			continue
		}
		if err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%q: %v, %v; want %v", c.dsn, got, err, c.want)
		}
	}
}

func TestDSNErrors(t *testing.T) {
	dir := t.TempDir()
	junk := filepath.Join(dir, "junk.pem")
	encrypted := filepath.Join(dir, "encrypted.pem")
	old := filepath.Join(dir, "old.pem")
	for path, text := range map[string]string{
		junk:      "nothing of the kind",
		encrypted: "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n",
		old:       "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00\n\nMIIB\n-----END RSA PRIVATE KEY-----\n",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ dsn, want string }{
		{"nonsense", "dsn must be a postgres:// URL or name=value pairs: there is no pair at its start"},
		{"host=h nonsense", "there is no pair after host"},
		{"host=h x=y nonsense", "there is no pair after an unknown parameter"},
		{"mysql://u:p@h/d?a=b", "there is no parameter's name at its start"},
		{"host=h a b=c", "there is no parameter's name after host"},
		{"=x", "dsn"},
		{"a\x00b", "NUL"},
		{"host='h", "host in the dsn has a quote that is not closed"},
		{`host='h\`, "host in the dsn has a quote that is not closed"},
		{"postgres://u:p%zz@h", "password in the dsn's URL holds a % that two hexadecimal digits do not follow"},
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
		{"postgres://h/d?ssl=yes", `ssl is "yes", must be true`},
		{"postgres://u:p@ss@h/d", `second "@"`},
		{"postgres://u@h:x/d", `port is "x", must be a number from 1 to 65535`},
		{"host=h port=0", `port is "0", must be a number from 1 to 65535`},
		{"host=h port=65536", `port is "65536"`},
		{"host=h port=1,2", `port is "1,2", must be one port, or 1, as many as there are hosts`},
		{"host=a,b,c port=1,2", "or 3, as many as there are hosts"},
		{"host=a,b hostaddr=1.2.3.4", `hostaddr is "1.2.3.4", must be 2 addresses`},
		{"hostaddr=x", `hostaddr is "x", must be an IP address`},
		{"sslmode=verify-ca", `sslmode verify-ca needs an sslrootcert`},
		{"sslmode=on", `sslmode is "on", must be one of disable, allow, prefer, require, verify-ca, verify-full`},
		{"sslmode=require sslrootcert=system", `sslmode is "require", must be verify-full where sslrootcert is system`},
		{"host=h sslrootcert=" + dir + "/none", "sslrootcert: open"},
		{"host=h sslrootcert=" + junk, "must be a PEM file with certificates"},
		{"host=h sslcert=" + junk, "sslcert and sslkey must be given together"},
		{"host=h sslcert=" + dir + "/none sslkey=" + junk, "sslcert: open"},
		{"host=h sslcert=" + junk + " sslkey=" + dir + "/none", "sslkey: open"},
		{"host=h sslcert=" + junk + " sslkey=" + junk, "must be a certificate and its key"},
		{"host=h sslcert=" + junk + " sslpassword=s sslkey=" + encrypted, "must be a key that is not encrypted"},
		{"host=h sslcert=" + junk + " sslkey=" + old, "must be a key that is not encrypted"},
		{"sslcertmode=require", `sslcertmode is "require", must be one of allow, disable`},
		{"sslsni=2", `sslsni is "2", must be one of 1, 0`},
		{"sslnegotiation=direct", `sslmode is "prefer", must be require, verify-ca or verify-full where sslnegotiation is direct`},
		{"sslnegotiation=x", `sslnegotiation is "x"`},
		{"ssl_min_protocol_version=SSLv3", `ssl_min_protocol_version is "SSLv3", must be one of TLSv1`},
		{"ssl_min_protocol_version=TLSv1.3 ssl_max_protocol_version=TLSv1.2", "must not be below"},
		{"sslcrl=x", `sslcrl is "x", must be empty`},
		{"sslcrldir=x", `sslcrldir is "x", must be empty`},
		{"requirepeer=x", `requirepeer is "x", must be empty`},
		{"service=x", `service is "x", must be empty`},
		{"gssencmode=require", `gssencmode is "require", must be one of disable, prefer`},
		{"min_protocol_version=3.2", `min_protocol_version is "3.2", must be one of 3.0`},
		{"client_encoding=LATIN1", `client_encoding is "LATIN1", must be UTF8`},
		{"target_session_attrs=master", `target_session_attrs is "master", must be one of any, read-write, read-only, primary, standby, prefer-standby`},
		{"connect_timeout=1s", `connect_timeout is "1s", must be a whole number from 0 of seconds`},
		{"connect_timeout=-1", `connect_timeout is "-1"`},
		{"load_balance_hosts=x", `load_balance_hosts is "x"`},
		{"keepalives=x", `keepalives is "x"`},
		{"keepalives_idle=x", `keepalives_idle is "x"`},
		{"channel_binding=x", `channel_binding is "x", must be one of prefer, disable, require`},
		{"require_auth=x", `require_auth is "x", must be a list of methods`},
		{"require_auth=md5,!password", `require_auth is "md5,!password"`},
		{"require_auth=md5,md5", `require_auth is "md5,md5"`},
		{"pool_max_conns=0", `pool_max_conns is "0", must be a whole number from 1`},
		{"pool_max_conn_lifetime=1", `pool_max_conn_lifetime is "1", must be a duration`},
		{"default_query_exec_mode=x", `default_query_exec_mode is "x"`},
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
	n := 0
	for _, dsn := range []string{
		"postgres://u:Xsecret1@h:x/d", "postgres://u:Xsecret1@h/d?sslmode=x", "postgres://u:Xsecret1%zz@h/d",
		"postgres://u:Xsecret1/@h/d", "postgres://u:a/Xsecret1@h/d", "postgres://u:1/Xsecret1@h/d",
		"postgres://u:a@Xsecret1@h/d", "postgres://u:Xsecret1@a@h:y/d", "postgres://u:Xsecret1/d", "postgres://u:Xsecret1?a=b",
		"postgres://u:Xsecret1:5432/d", "postgres://u:Xsecret1,h/d", "postgres://u:Xsecret1?user=v", "postgres://u:Xsecret1/d?user=v@w", "postgres://u:a?sslmode=Xsecret1@h/d?x",
		"postgres://u:a/b?sslmode=Xsecret1@h/d", "postgres://u@h/d?password=Xsecret1%zz", "postgres://u@h/d?password=Xsecret1=x",
		"postgres://u@h:x/d?password=Xsecret1", "postgre://u:Xsecret1@h/d", "postgre://u:Xsecret1@h/d?sslmode=disable",
		"//u:Xsecret1@h", "password=Xsecret1 x", "password='Xsecret1", "password=a Xsecret1", "password='a'Xsecret1 port=x",
		"password=a Xsecret1 port=1", "password=a Xsecret1=x y", "password=Xsecret1 sslmode=x", "Xsecret1", "Xsecret1 password=x",
		"password='Xsecret1\\", "sslmode=disablepassword=Xsecret1", "host=h sslrootcert=/xpassword=Xsecret1", "service=apassword=Xsecret1 a=b",
		"sslpassword=Xsecret1 port=x", "passwordXsecret1", "password Xsecret1", "postgres://u:Xsecret1@h\x00",
	} {
		p, err := Open(dsn, Options{LookupEnv: noEnv})
		if err == nil {
			p.Close()
			t.Errorf("%q: no error", dsn)
			continue
		}
		n++
		if strings.Contains(err.Error(), secret) {
			t.Errorf("%q: %v", dsn, err)
		}
	}
	if n < 30 {
		t.Errorf("only %d strings failed", n)
	}
}

func TestDSNMeaning(t *testing.T) {
	c, err := parseConfig("host=a,b port=1,2 user=u password=p dbname=d connect_timeout=3 target_session_attrs=primary "+
		"search_path=x options='-c y=z' application_name=me sslmode=disable load_balance_hosts=random keepalives_idle=9 "+
		"require_auth=!none channel_binding=disable pool_max_conns=3 pool_max_conn_lifetime=2m pool_max_conn_idle_time=90s "+
		"default_query_exec_mode=exec fallback_application_name=other pool_min_conns=1 krbsrvname=k "+
		"oauth_client_secret=o scram_client_key=s sslkeylogfile=l", noEnv, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	if want := []target{{host: "a", port: "1"}, {host: "b", port: "2"}}; !reflect.DeepEqual(c.targets, want) {
		t.Errorf("targets %v", c.targets)
	}
	if c.user != "u" || c.password != "p" || c.dbname != "d" || c.attempt != 3*time.Second || c.session != "primary" ||
		!c.shuffle || c.alive != 9*time.Second || c.auth.allowed["none"] || !c.auth.allowed["md5"] || c.auth.binding != "disable" ||
		c.pool != (poolSettings{3, 2 * time.Minute, 90 * time.Second}) || !c.unnamed || c.tls.mode != "disable" {
		t.Errorf("%+v", c)
	}
	if want := map[string]string{"search_path": "x", "options": "-c y=z", "application_name": "me"}; !reflect.DeepEqual(c.settings, want) {
		t.Errorf("settings %v", c.settings)
	}
	want := "\x00\x00\x00\x90\x00\x03\x00\x00user\x00u\x00client_encoding\x00UTF8\x00database\x00d\x00" +
		"application_name\x00me\x00options\x00-c y=z\x00search_path\x00x\x00\x00"
	got := string(c.startup())
	if got[4:] != want[4:] || int(got[3]) != len(got) {
		t.Errorf("startup %q", got)
	}
}

func TestDSNEnvironment(t *testing.T) {
	all := env("PGHOST", "eh", "PGPORT", "7", "PGUSER", "eu", "PGPASSWORD", "ep", "PGDATABASE", "ed", "PGSSLMODE", "disable",
		"PGAPPNAME", "ea", "PGCONNECT_TIMEOUT", "4", "PGTARGETSESSIONATTRS", "any", "PGOPTIONS", "-c a=b", "PGTZ", "UTC", "PGPASSFILE", "/p")
	c, err := parseConfig("", all, nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.targets[0] != (target{host: "eh", port: "7"}) || c.user != "eu" || c.password != "ep" || c.dbname != "ed" || c.tls.mode != "disable" ||
		c.attempt != 4*time.Second || c.passfile != "/p" {
		t.Errorf("%+v", c)
	}
	if want := map[string]string{"application_name": "ea", "options": "-c a=b", "timezone": "UTC"}; !reflect.DeepEqual(c.settings, want) {
		t.Errorf("settings %v", c.settings)
	}
	// The connection string wins, even with nothing in it.
	c, err = parseConfig("host=h port='' user=u dbname=d password=p connect_timeout=", all, nil)
	if err != nil {
		t.Fatal(err)
	}
	if c.targets[0] != (target{host: "h", port: "5432"}) || c.user != "u" || c.password != "p" || c.dbname != "d" || c.attempt != 0 {
		t.Errorf("%+v", c)
	}
	if _, err := parseConfig("", env("PGSSLMODE", "maybe"), nil); err == nil || !strings.Contains(err.Error(), `sslmode is "maybe"`) {
		t.Errorf("PGSSLMODE: %v", err)
	}
	if c, err = parseConfig("host=h", noEnv, nil); err != nil || c.user == "" {
		t.Errorf("the account's name is the default user: %v", err)
	}
}

func TestOpenOptions(t *testing.T) {
	p, err := Open("host=h pool_max_conns=3", Options{LookupEnv: noEnv, ApplicationName: "x"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if p.o.MaxConns != 3 || p.o.IdleTimeout != 5*time.Minute || p.o.MaxLifetime != time.Hour || p.o.HealthCheckAfter != 30*time.Second {
		t.Errorf("%+v", p.o)
	}
	if p.cfg.settings["application_name"] != "x" {
		t.Errorf("settings %v", p.cfg.settings)
	}
	q, err := Open("host=h pool_max_conns=3 application_name=y", Options{LookupEnv: noEnv, ApplicationName: "x", MaxConns: 4})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	if q.o.MaxConns != 4 || q.cfg.settings["application_name"] != "y" {
		t.Errorf("%+v %v", q.o, q.cfg.settings)
	}
	if _, err := Open("host=h", Options{MaxConns: -1}); err == nil {
		t.Error("MaxConns: -1 is accepted")
	}
}

func TestPassfile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pass")
	text := "# comment:1:2:3:4\n" +
		"h1:5432:d:u:one\r\n" +
		`h\:2:*:*:u:t\:w\\o:rest` + "\n" +
		`\*:1:*:*:star` + "\n" +
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
		{target{host: "*", port: "1"}, "u", "x", "star"},
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
	if got := c.passwordFor(target{host: "h1", port: "5432"}); got != "" || len(logged) != 1 || !strings.Contains(logged[0], "0600") {
		t.Errorf("a file that others may read: %q, %q", got, logged)
	}
	c.passfile = path + "none"
	if got := c.passwordFor(target{host: "h1", port: "5432"}); got != "" || len(logged) != 1 {
		t.Errorf("a file that is not there: %q, %q", got, logged)
	}
}
