package pgwire

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMain removes the variables that would change a connection string's meaning.
func TestMain(m *testing.M) {
	for _, pair := range os.Environ() {
		name, _, _ := strings.Cut(pair, "=")
		if name == "HOME" || strings.HasPrefix(name, "PG") && !strings.HasPrefix(name, "PG_") {
			_ = os.Unsetenv(name)
		}
	}
	os.Exit(m.Run())
}

// Errors name the fault and do not quote the password. testdata/dsn_errors.txt has a malformed string of each
// kind.
func TestDSNErrorsNameFaultWithoutPassword(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"junk.pem":      "no certificate",
		"encrypted.pem": "-----BEGIN ENCRYPTED PRIVATE KEY-----\nMIIB\n-----END ENCRYPTED PRIVATE KEY-----\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range readLines(t, "dsn_errors.txt", "DIR", dir) {
		if c.want == "" && c.text == "" {
			continue
		}
		p, err := Open(c.text, Options{})
		if err == nil {
			p.Close()
			t.Errorf("Open(%q) = nil error, want %q", c.text, c.want)
		} else if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "Xsecret1") {
			t.Errorf("Open(%q):\n error %v\n  want %s, without the password", c.text, err, c.want)
		}
	}
}

// testLine is a line of a file in testdata and its expected result.
type testLine struct{ text, want string }

// readLines reads a file of testdata. A line that starts with "!" has the expected result of the line above
// it. A line that starts with "#" is a comment. pairs lists texts and their replacements.
func readLines(t *testing.T, file string, pairs ...string) (lines []testLine) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	replacer := strings.NewReplacer(append(pairs, "<NUL>", "\x00", "<TAB>", "\t", "<LF>", "\n")...)
	for line := range strings.Lines(string(data)) {
		line = strings.TrimSuffix(line, "\n")
		if want, ok := strings.CutPrefix(line, "!"); ok {
			lines[len(lines)-1].want = strings.TrimPrefix(want, " ")
		} else if !strings.HasPrefix(line, "#") {
			lines = append(lines, testLine{text: replacer.Replace(line)})
		}
	}
	return lines
}

// A parameter of the connection string takes precedence over the environment, even if its value is empty.
// TestDSNLikePgx does not test that, because an empty value is an error for pgx.
func TestDSNPrecedesEnvironment(t *testing.T) {
	for name, value := range map[string]string{"PGPORT": "7", "PGCONNECT_TIMEOUT": "4",
		"PGPASSFILE": os.DevNull} {
		t.Setenv(name, value)
	}
	c, err := parseConfig("host=h port='' connect_timeout=", nil)
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprintf("%s:%s %v %s", c.targets[0].host, c.targets[0].port, c.attemptTimeout, c.passfile)
	if got != "h:5432 0s /dev/null" || c.user == "" {
		t.Errorf("parseConfig() has %s of user %q, want h:5432 0s /dev/null of the account's name", got,
			c.user)
	}
	t.Setenv("PGSSLMODE", "maybe")
	_, err = parseConfig("", nil)
	if !strings.Contains(fmt.Sprint(err), "sslmode must be") {
		t.Errorf("with PGSSLMODE=maybe: error %v, want one about sslmode", err)
	}
}

// The password is in the first line of the file that matches the host, the port, the database and the user.
func TestPassfileHasPasswordInFirstMatch(t *testing.T) {
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
	c := &config{passfile: path, log: func(s string) { logged = append(logged, s) }}
	for _, line := range readLines(t, "passfile.txt") {
		fields := strings.Split(line.text, " ")
		c.user, c.dbname = fields[2], fields[3]
		if got := c.passwordFor(target{host: fields[0], port: fields[1]}); got != line.want {
			t.Errorf("the password of %q is %q, want %q", line.text, got, line.want)
		}
	}
	c.password = "given"
	if got := c.passwordFor(target{host: "h1", port: "5432"}); got != "given" {
		t.Errorf("with a password in the connection string: %q, want %q", got, "given")
	}
	c.password, c.user, c.dbname = "", "u", "d"
	c.passfile = path + "none"
	if got := c.passwordFor(target{host: "h1", port: "5432"}); got != "" || len(logged) != 0 {
		t.Errorf("without a file: password %q, log %q; want none, and no line", got, logged)
	}
}
