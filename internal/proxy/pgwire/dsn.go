package pgwire

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
)

// parseDSN splits a connection string into parameters, by libpq's names ("dbname",
// never "database"). It checks the syntax only. Its errors never quote text that
// could be part of a password; in a malformed string that is nearly all of it.
func parseDSN(dsn string) (map[string]string, error) {
	if strings.Contains(dsn, "\x00") {
		return nil, errors.New("dsn holds a NUL byte, must be text")
	}
	if isURL(dsn) {
		return parseURL(afterScheme(dsn))
	}
	return parsePairs(dsn)
}

func isURL(dsn string) bool {
	return strings.HasPrefix(dsn, "postgres://") || strings.HasPrefix(dsn, "postgresql://")
}

func afterScheme(dsn string) string { return dsn[strings.Index(dsn, "//")+2:] }

// userinfo returns the length of user:password before an "@" in what follows a
// URL's scheme, or -1. Only a "/" ends the search, as in libpq.
func userinfo(rest string) int {
	if i := strings.IndexAny(rest, "@/"); i >= 0 && rest[i] == '@' {
		return i
	}
	return -1
}

// parseURL reads what follows the scheme: user:password@host:port,host:port/dbname?name=value&…
// Where libpq and RFC 3986 differ, it follows libpq, except that it refuses a second
// "@": the password probably contains one that must be quoted, and the rest of the
// password would be taken for a host and be shown in errors.
func parseURL(rest string) (map[string]string, error) {
	var parts [][2]string // names of parameters, and their values as they are in the URL
	add := func(name, value string) {
		if value != "" {
			parts = append(parts, [2]string{name, value})
		}
	}
	if i := userinfo(rest); i >= 0 {
		user, password, _ := strings.Cut(rest[:i], ":")
		add("user", user)
		add("password", password)
		rest = rest[i+1:]
	}
	authority, query, _ := strings.Cut(rest, "?")
	if strings.Contains(authority, "@") {
		return nil, errors.New(
			`dsn: a second "@" in a URL, or one after a "/"; in a user or password "@" must be ` +
				`written %40, and "/" must be %2F`)
	}
	list, dbname, _ := strings.Cut(authority, "/")
	hosts, ports, err := splitHosts(list)
	if err != nil {
		return nil, err
	}
	add("host", hosts)
	add("port", ports)
	add("dbname", dbname)
	if query != "" {
		for _, pair := range strings.Split(strings.TrimSuffix(query, "&"), "&") {
			name, value, ok := strings.Cut(pair, "=")
			if !ok || strings.Contains(value, "=") {
				return nil, errors.New(
					`dsn: the part of a URL after "?" must be name=value pairs with "&" between them`)
			}
			parts = append(parts, [2]string{name, value})
		}
	}
	found := map[string]string{} // of several values of a name, the last
	for _, part := range parts {
		name, err := decode(part[0])
		if err != nil {
			return nil, fmt.Errorf("dsn: a parameter's name after \"?\" in a URL %w", err)
		}
		if name, err = parameterName(name); err != nil {
			return nil, err
		}
		value, err := decode(part[1])
		if err != nil {
			return nil, fmt.Errorf("%s in the dsn's URL %w", name, err)
		}
		found[name] = value
	}
	return found, nil
}

// hostAndPort matches a host, which is in brackets if it is an IPv6 address, and perhaps a colon and a port.
var hostAndPort = regexp.MustCompile(`(?s)^(?:\[([^][]+)\]|([^][:]*))(?::(.*))?$`)

// splitHosts splits host:port,host:port… into two lists, of hosts and of ports.
func splitHosts(list string) (string, string, error) {
	var hosts, ports []string
	for _, item := range strings.Split(list, ",") {
		parts := hostAndPort.FindStringSubmatch(item)
		if parts == nil {
			return "", "", errors.New(
				`dsn: an IPv6 host in a URL must be in brackets, and only ":" and a port after them, ` +
					`such as [::1]:5432`)
		}
		hosts = append(hosts, parts[1]+parts[2])
		ports = append(ports, parts[3])
	}
	return strings.Join(hosts, ","), strings.Join(ports, ","), nil
}

var errPairs = errors.New("dsn must be a postgres:// URL or name=value pairs")

// pair matches a name, the value in quotes or without, and spaces. A backslash takes the next character as
// it is.
var (
	pair = regexp.MustCompile(`(?s)^([^=]*)=[ \t\n\r\v\f]*` +
		`(?:'((?:[^'\\]|\\.)*)'|((?:[^ \t\n\r\v\f\\]|\\.?)*))[ \t\n\r\v\f]*`)
	backslash = regexp.MustCompile(`(?s)\\(.?)`)
)

// parsePairs reads name=value name='quoted value' …
func parsePairs(dsn string) (map[string]string, error) {
	found := map[string]string{}
	const spaces = " \t\n\r\v\f"
	rest := strings.TrimLeft(dsn, spaces)
	for rest != "" {
		parts := pair.FindStringSubmatch(rest)
		if parts == nil {
			return nil, errPairs
		}
		name, err := parameterName(strings.Trim(parts[1], spaces))
		if err != nil {
			return nil, errPairs
		}
		if strings.HasPrefix(parts[3], "'") {
			return nil, fmt.Errorf("%s in the dsn has a quote that is not closed", name)
		}
		rest = rest[len(parts[0]):]
		value := backslash.ReplaceAllString(parts[2]+parts[3], "$1")
		if name != "user" || value != "" {
			found[name] = value
		}
	}
	return found, nil
}

// nameForm is the form of a parameter's name.
var nameForm = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_.]*$`)

// parameterName checks the form of a parameter's name and returns libpq's name for it.
func parameterName(name string) (string, error) {
	switch {
	case name == "":
		return "", errors.New("dsn: a parameter without a name")
	case name == "database":
		return "dbname", nil
	case !nameForm.MatchString(name):
		return "", errors.New("dsn: a parameter's name must be letters, digits, underscores and dots")
	}
	return name, nil
}

// decode undoes the percent-encoding of a part of a URL, without spaces around it.
// The error is the end of a sentence and quotes nothing.
func decode(raw string) (string, error) {
	raw = strings.Trim(raw, " ")
	if strings.Contains(raw, " ") {
		return "", errors.New("holds a space, must have %20 instead")
	}
	value, err := url.PathUnescape(raw)
	if err != nil {
		return "", errors.New("holds a % without two hexadecimal digits after it, must have %25 instead")
	}
	if strings.Contains(value, "\x00") {
		return "", errors.New("holds %00, must be text")
	}
	return value, nil
}
