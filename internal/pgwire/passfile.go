package pgwire

import (
	"os"
	"runtime"
	"strings"
)

// passwordFor is the password for a target: the connection string's, or else
// the first match in the password file, or "". The file is read anew each time,
// so that it may change.
func (c *config) passwordFor(t target) string {
	if c.password != "" || c.passfile == "" {
		return c.password
	}
	info, err := os.Stat(c.passfile)
	if err != nil || !info.Mode().IsRegular() {
		return ""
	}
	if runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0 {
		c.log("the password file " + c.passfile + " is not used: others may read it; its mode must be 0600 or less")
		return ""
	}
	text, err := os.ReadFile(c.passfile)
	if err != nil {
		c.log("the password file is not used: " + err.Error())
		return ""
	}
	dbname := c.dbname
	if dbname == "" {
		dbname = c.user
	}
	for _, line := range strings.Split(string(text), "\n") {
		line = strings.TrimSuffix(line, "\r")
		if strings.HasPrefix(line, "#") {
			continue
		}
		f := passfields(line)
		if len(f) < 5 || !f[1].matches(t.port) || !f[2].matches(dbname) || !f[3].matches(c.user) {
			continue
		}
		if f[0].matches(t.host) || t.unix() && f[0].matches("localhost") {
			return f[4].text
		}
	}
	return ""
}

// passfield is a field of a line host:port:database:user:password.
type passfield struct {
	text string
	any  bool // an unescaped * and nothing else
}

func (f passfield) matches(value string) bool { return f.any || f.text == value }

// passfields splits a line. A backslash takes the next character as it is.
func passfields(line string) []passfield {
	var fields []passfield
	var b strings.Builder
	start := 0
	for i := 0; i <= len(line); i++ {
		switch {
		case i == len(line) || line[i] == ':':
			fields = append(fields, passfield{text: b.String(), any: line[start:i] == "*"})
			b.Reset()
			start = i + 1
		case line[i] == '\\' && i+1 < len(line):
			i++
			b.WriteByte(line[i])
		default:
			b.WriteByte(line[i])
		}
	}
	return fields
}
