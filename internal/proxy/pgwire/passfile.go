package pgwire

import (
	"os"
	"strings"
)

// passwordFor returns the password for a target: the password of the connection string, or else of the first
// line that matches in the password file, or else "". It reads the file each time, so that the file can
// change.
func (c *config) passwordFor(t target) string {
	if c.password != "" || c.passfile == "" {
		return c.password
	}
	info, err := os.Stat(c.passfile)
	if err != nil || !info.Mode().IsRegular() {
		return ""
	}
	data, err := os.ReadFile(c.passfile)
	if err != nil {
		c.log("the password file " + c.passfile + " is not used: " + err.Error())
		return ""
	}
	dbname := c.dbname
	if dbname == "" {
		dbname = c.user
	}
	for _, line := range strings.Split(string(data), "\n") {
		f := strings.Split(escaped.Replace(strings.TrimSuffix(line, "\r")), ":")
		if len(f) < 5 || strings.HasPrefix(line, "#") || !matches(f[1], t.port) || !matches(f[2], dbname) ||
			!matches(f[3], c.user) {
			continue
		}
		if matches(f[0], t.host) || t.unix() && matches(f[0], "localhost") {
			return unescaped.Replace(f[4])
		}
	}
	return ""
}

// A line is host:port:database:user:password. escaped hides the characters that a backslash escapes, so that
// a line can be split.
var (
	escaped   = strings.NewReplacer(`\\`, "\x00", `\:`, "\x01")
	unescaped = strings.NewReplacer("\x00", `\`, "\x01", ":")
)

// matches reports whether a field of the file matches a value. "*" matches every value.
func matches(field, value string) bool { return field == "*" || unescaped.Replace(field) == value }
