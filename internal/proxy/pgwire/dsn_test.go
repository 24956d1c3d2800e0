package pgwire

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

// A connection string that does not parse ends with an error that says what is wrong, without a password:
// testdata/dsn_errors.txt has one of each kind.
func TestDSNErrors(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"junk.pem":      "nothing of the kind",
		"encrypted.pem": "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range linesOf(t, "dsn_errors.txt", "DIR", dir) {
		if c.want == "" && c.text == "" {
			continue
		}
		p, err := Open(c.text, Options{LookupEnv: noEnv})
		if err == nil {
			p.Close()
			t.Errorf("%q: no error; want %q", c.text, c.want)
		} else if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "Xsecret1") {
			t.Errorf("%q:\n %v\nwant\n %s", c.text, err, c.want)
		}
	}
}

// row is a text of a file in testdata, and what is wanted of it.
type row struct{ text, want string }

// linesOf reads a file of testdata. A line that begins with "!" has what is wanted of the line above it, and
// one that begins with "#" is a comment. Pairs of texts are replaced.
func linesOf(t *testing.T, file string, pairs ...string) (all []row) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	replacer := strings.NewReplacer(append(pairs, "<NUL>", "\x00", "<TAB>", "\t", "<LF>", "\n")...)
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSuffix(line, "\n")
		if want, found := strings.CutPrefix(line, "!"); found {
			all[len(all)-1].want = strings.TrimPrefix(want, " ")
		} else if !strings.HasPrefix(line, "#") {
			all = append(all, row{text: replacer.Replace(line)})
		}
	}
	return all
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
		t.Errorf("the settings are %v, want %v", c.settings, want)
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
		!strings.Contains(err.Error(), "sslmode must be") {
		t.Errorf("with PGSSLMODE=maybe the error is %v, want one about sslmode", err)
	}
	if c, err = parseConfig("host=h", noEnv, nil); err != nil || c.user == "" {
		t.Errorf("user %q, error %v; want the name of the account", c.user, err)
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
