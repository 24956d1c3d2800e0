package pg

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"sort"
	"strings"
)

// ParseDSN splits a connection string into parameters by libpq's names ("dbname", never "database"). It
// leaves out parameters that have no effect here, and refuses those that are unsafe to ignore and those of
// other programs; see parameterName and Permitted. Its errors quote no text of the string but the names of
// known parameters, because in a malformed string nearly all text could be part of a password.
func ParseDSN(dsn string) (map[string]string, error) {
	if strings.Contains(dsn, "\x00") {
		return nil, errors.New("dsn holds a NUL byte, must be text")
	}
	if trimmed := strings.TrimSpace(dsn); strings.HasPrefix(trimmed, `"`) || strings.HasPrefix(trimmed, "'") {
		return nil, errors.New("dsn is in quotation marks, must be without them")
	}
	parse, text := parsePairs, dsn
	if scheme, rest, isURL := strings.Cut(dsn, "://"); isURL && schemeForm.MatchString(scheme) {
		if scheme != "postgres" && scheme != "postgresql" {
			return nil, fmt.Errorf("dsn has the scheme %s, must be postgres:// or postgresql://", scheme)
		}
		parse, text = parseURL, rest
	}
	values, err := parse(text)
	if err != nil {
		return nil, err
	}
	if strings.ContainsAny(values["host"], ";\"'") {
		return nil, errors.New("host in the dsn must be names or addresses with commas between them")
	}
	for i := range Permitted {
		if err := Permitted[i].Check(values[Permitted[i].Name]); err != nil {
			return nil, err
		}
	}
	names := make([]string, 0, len(values))
	for name := range values {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		switch value := values[name]; {
		case name == "password":
		case urlForm.MatchString(value):
			return nil, fmt.Errorf("the parameter %s in the dsn holds a URL: write the URL alone", name)
		case name != strings.ToLower(name) && name == strings.ToUpper(name):
			return nil, errVariable
		}
		if withoutEffect[name] {
			delete(values, name)
		}
	}
	return values, nil
}

// FormatDSN returns a connection string of name=value pairs with the parameters.
func FormatDSN(values map[string]string) string {
	var pairs []string
	for name, value := range values {
		pairs = append(pairs, name+"='"+strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(value)+"'")
	}
	sort.Strings(pairs)
	return strings.Join(pairs, " ")
}

// schemeForm matches the scheme of a URL. The scheme may follow another one, as in jdbc:postgresql.
var schemeForm = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.:-]*$`)

// urlForm matches the start of a DSN that is a URL.
var urlForm = regexp.MustCompile(`(?i)^["']?postgres(?:ql)?://`)

// parseURL parses the URL after its scheme: user:password@host:port,host:port/dbname?name=value&… Where libpq
// and RFC 3986 differ, parseURL follows libpq, except that it refuses a second "@": the first "@" is then
// probably part of the password, and errors would show the end of the password as a host.
func parseURL(rest string) (map[string]string, error) {
	var parts [][2]string // names of parameters and their encoded values
	add := func(name, value string) {
		if value != "" {
			parts = append(parts, [2]string{name, value})
		}
	}
	if i := strings.IndexAny(rest, "@/"); i >= 0 && rest[i] == '@' { // a "/" ends the search, as in libpq
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
	servers, dbname, _ := strings.Cut(authority, "/")
	hosts, ports, err := splitHosts(servers)
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
	values := map[string]string{} // the last value of each name
	for _, part := range parts {
		name, err := decode(part[0])
		if err == nil {
			name, err = parameterName(name)
		} else {
			err = errName
		}
		if err != nil {
			return nil, err
		}
		value, err := decode(part[1])
		if err != nil {
			return nil, fmt.Errorf("%s in the dsn's URL %w", name, err)
		}
		values[name] = value
	}
	return values, nil
}

// splitHosts splits host:port,host:port… into a list of hosts and a list of ports.
func splitHosts(servers string) (string, string, error) {
	var hosts, ports []string
	for _, item := range strings.Split(servers, ",") {
		host, port, err := net.SplitHostPort(item)
		if err != nil {
			host, port, err = net.SplitHostPort(item + ":")
		}
		if err != nil || strings.HasPrefix(item, "[]") {
			return "", "", errors.New(
				`dsn: an IPv6 host in a URL must be in brackets, and only ":" and a port after them, ` +
					`such as [::1]:5432`)
		}
		hosts = append(hosts, host)
		ports = append(ports, port)
	}
	return strings.Join(hosts, ","), strings.Join(ports, ","), nil
}

// errVariable is the error about the name of a variable, which it does not quote: see errName.
var errVariable = errors.New("dsn: a parameter's name must have lower case: of a variable, such as " +
	"DATABASE_URL, write the value alone")

var errPairs = errors.New("dsn must be a postgres:// URL or name=value pairs")

// pair matches a name, a value with or without quotes, and spaces. A backslash escapes the next character.
var (
	pair = regexp.MustCompile(`(?s)^([^=]*)=[ \t\n\r\v\f]*` +
		`(?:'((?:[^'\\]|\\.)*)'|((?:[^ \t\n\r\v\f\\]|\\.?)*))[ \t\n\r\v\f]*`)
	backslash = regexp.MustCompile(`(?s)\\(.?)`)
)

// parsePairs parses name=value name='quoted value' …
func parsePairs(dsn string) (map[string]string, error) {
	values := map[string]string{}
	const spaces = " \t\n\r\v\f"
	rest := strings.TrimLeft(dsn, spaces)
	for rest != "" {
		parts := pair.FindStringSubmatch(rest)
		if parts == nil {
			return nil, errPairs
		}
		name, err := parameterName(strings.Trim(parts[1], spaces))
		if errors.Is(err, errName) {
			return nil, errPairs
		}
		if err != nil {
			return nil, err
		}
		if strings.HasPrefix(parts[3], "'") {
			return nil, fmt.Errorf("%s in the dsn has a quote that is not closed", name)
		}
		rest = rest[len(parts[0]):]
		value := backslash.ReplaceAllString(parts[2]+parts[3], "$1")
		if name != "user" || value != "" {
			values[name] = value
		}
	}
	return values, nil
}

// decode trims spaces and undoes the percent-encoding of a part of a URL. Its error completes a sentence and
// quotes nothing, because raw may be a password.
func decode(raw string) (string, error) {
	raw = strings.Trim(raw, " ")
	value, err := url.PathUnescape(raw)
	if err != nil || strings.Contains(raw, " ") || strings.Contains(value, "\x00") {
		return "", errors.New("must be text with %20 for a space, and %25 for a percent sign")
	}
	return value, nil
}
