package pgwire

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// parseDSN reads a connection string into its parameters, by libpq's names
// ("dbname", never "database"). It knows the syntax only. Its errors never
// quote text that could be part of a password, which in a malformed string
// is nearly all of it.
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

// userinfo is the length of user:password before an "@" in what follows a URL's
// scheme, or -1. Only a "/" ends the search, as in libpq.
func userinfo(rest string) int {
	if i := strings.IndexAny(rest, "@/"); i >= 0 && rest[i] == '@' {
		return i
	}
	return -1
}

// parseURL reads what follows the scheme: user:password@host:port,host:port/dbname?name=value&…
// Where libpq and RFC 3986 differ, it follows libpq, except that a second "@"
// is refused: it is the sign of a password that needs quoting, whose rest would
// pass for a host, and show up in errors.
func parseURL(rest string) (map[string]string, error) {
	found := map[string]string{}
	if i := userinfo(rest); i >= 0 {
		user, password := rest[:i], ""
		if colon := strings.Index(user, ":"); colon >= 0 {
			user, password = user[:colon], user[colon+1:]
		}
		rest = rest[i+1:]
		if err := setDecoded(found, "user", user); err != nil {
			return nil, err
		}
		if err := setDecoded(found, "password", password); err != nil {
			return nil, err
		}
	}
	authority, query := rest, ""
	if i := strings.Index(rest, "?"); i >= 0 {
		authority, query = rest[:i], rest[i+1:]
	}
	hosts, path := authority, ""
	if i := strings.Index(authority, "/"); i >= 0 {
		hosts, path = authority[:i], authority[i+1:]
	}
	if strings.Contains(authority, "@") {
		return nil, errors.New(`dsn: a second "@" in a URL, or one after a "/"; in a user or password "@" must be written %40, and "/" must be %2F`)
	}
	if err := parseHosts(found, hosts); err != nil {
		return nil, err
	}
	if err := setDecoded(found, "dbname", path); err != nil {
		return nil, err
	}
	if err := parseQuery(found, query); err != nil {
		return nil, err
	}
	return found, nil
}

// parseHosts reads host:port,host:port… into host and port, two lists that
// belong together, as in libpq.
func parseHosts(found map[string]string, list string) error {
	errBrackets := errors.New(`dsn: an IPv6 host in a URL must be in brackets, and only ":" and a port after them, such as [::1]:5432`)
	var hosts, ports []string
	for _, item := range strings.Split(list, ",") {
		host, port := item, ""
		if end := strings.Index(item, "]"); end > 1 && item[0] == '[' {
			host, port = item[1:end], item[end+1:]
			if port != "" && port[0] != ':' {
				return errBrackets
			}
			port = strings.TrimPrefix(port, ":")
		} else if i := strings.Index(item, ":"); i >= 0 {
			host, port = item[:i], item[i+1:]
		}
		if strings.ContainsAny(host, "[]") {
			return errBrackets
		}
		hosts = append(hosts, host)
		ports = append(ports, port)
	}
	if err := setDecoded(found, "host", strings.Join(hosts, ",")); err != nil {
		return err
	}
	return setDecoded(found, "port", strings.Join(ports, ","))
}

// parseQuery reads name=value&name=value. The last of several values counts.
func parseQuery(found map[string]string, query string) error {
	if query == "" {
		return nil
	}
	query = strings.TrimSuffix(query, "&")
	ssl := ""     // the last value of ssl
	later := true // whether it came after the last sslmode
	for _, pair := range strings.Split(query, "&") {
		i := strings.Index(pair, "=")
		if i < 0 || strings.Contains(pair[i+1:], "=") {
			return errors.New(`dsn: the part of a URL after "?" must be name=value pairs with "&" between them`)
		}
		name, err := decode(pair[:i])
		if err != nil {
			return errors.New("dsn: a parameter's name after \"?\" in a URL " + err.Error())
		}
		if name, err = parameterName(name); err != nil {
			return err
		}
		value, err := decode(pair[i+1:])
		if err != nil {
			return fmt.Errorf("%s in the dsn's URL %w", name, err)
		}
		switch name {
		case "ssl":
			ssl, later = value, true
			continue
		case "sslmode":
			later = false
		}
		found[name] = value
	}
	// JDBC's way of saying sslmode=require.
	switch {
	case ssl == "true" && later:
		found["sslmode"] = "require"
	case ssl != "" && ssl != "true":
		return fmt.Errorf("ssl is %q, must be true; better say sslmode", ssl)
	}
	return nil
}

// parsePairs reads name=value name='quoted value' …
func parsePairs(dsn string) (map[string]string, error) {
	found := map[string]string{}
	const spaces = " \t\n\r\v\f"
	before := "at its start"
	rest := strings.TrimLeft(dsn, spaces)
	for rest != "" {
		i := strings.Index(rest, "=")
		if i < 0 {
			return nil, fmt.Errorf("dsn must be a postgres:// URL or name=value pairs: there is no pair %s", before)
		}
		name, err := parameterName(strings.Trim(rest[:i], spaces))
		if err != nil {
			return nil, fmt.Errorf("dsn must be a postgres:// URL or name=value pairs: there is no parameter's name %s", before)
		}
		rest = strings.TrimLeft(rest[i+1:], spaces)
		value, n, err := pairValue(rest)
		if err != nil {
			return nil, fmt.Errorf("%s in the dsn %w", name, err)
		}
		rest = strings.TrimLeft(rest[n:], spaces)
		if isKnown(name) {
			before = "after " + name
		} else {
			before = "after an unknown parameter" // which may be half a password
		}
		if name == "user" && value == "" {
			continue
		}
		found[name] = value
	}
	return found, nil
}

// pairValue reads a value, quoted or up to a space, and returns it and its length
// in s. A backslash takes the next character as it is.
func pairValue(s string) (string, int, error) {
	quoted := strings.HasPrefix(s, "'")
	i := 0
	if quoted {
		i = 1
	}
	var b strings.Builder
	for ; i < len(s); i++ {
		c := s[i]
		switch {
		case quoted && c == '\'':
			return b.String(), i + 1, nil
		case !quoted && (c == ' ' || c >= '\t' && c <= '\r'):
			return b.String(), i, nil
		case c == '\\':
			i++
			if i < len(s) {
				b.WriteByte(s[i])
			}
			continue
		}
		b.WriteByte(c)
	}
	if quoted {
		return "", 0, errors.New("has a quote that is not closed")
	}
	end := len(s) // Yaegi cannot return a len unless it comes first
	return b.String(), end, nil
}

// parameterName checks the form of a parameter's name and returns libpq's name for it.
func parameterName(name string) (string, error) {
	for i := 0; i < len(name); i++ {
		c := name[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_'
		if !letter && (i == 0 || !(c >= '0' && c <= '9' || c == '.')) {
			return "", errors.New("dsn: a parameter's name must be letters, digits, underscores and dots")
		}
	}
	switch name {
	case "":
		return "", errors.New("dsn: a parameter without a name")
	case "database":
		return "dbname", nil
	}
	return name, nil
}

// setDecoded sets a part of a URL, unless it is empty.
func setDecoded(found map[string]string, name, raw string) error {
	if raw == "" {
		return nil
	}
	value, err := decode(raw)
	if err != nil {
		return fmt.Errorf("%s in the dsn's URL %w", name, err)
	}
	found[name] = value
	return nil
}

// decode undoes the percent-encoding of a part of a URL. Spaces around it do
// not count. The error is the rest of a sentence and quotes nothing.
func decode(raw string) (string, error) {
	raw = strings.Trim(raw, " ")
	if strings.Contains(raw, " ") {
		return "", errors.New("holds a space, must have %20 instead")
	}
	value, err := url.PathUnescape(raw)
	if err != nil {
		return "", errors.New("holds a % that two hexadecimal digits do not follow, must have %25 instead")
	}
	if strings.Contains(value, "\x00") {
		return "", errors.New("holds %00, must be text")
	}
	return value, nil
}
