package serve

import (
	"net/url"
	"path"
	"regexp"
	"strconv"
	"strings"
)

// Host normalizes a host for keys: lower case, without the dot that may end a full name.
func Host(host string) string {
	return strings.TrimSuffix(strings.ToLower(host), ".")
}

// Path normalizes a path for keys: it removes empty, "." and ".." segments, with which a client could name
// one page in many ways. Traefik normalizes request paths the same way.
func Path(text string) string {
	if !strings.Contains(text, "//") && !strings.Contains(text, "/.") {
		return text
	}
	clean := path.Clean(text)
	if clean != "/" && strings.HasSuffix(text, "/") {
		clean += "/"
	}
	return clean
}

// CleanURL normalizes the URL of a request for keys: the path by Path, with one form of each escape, and the
// query with & instead of semicolons, as in Traefik. If nothing changes, it returns u.
func CleanURL(u *url.URL) *url.URL {
	clean := Path(u.Path)
	if clean == u.Path && strings.IndexByte(u.RawQuery, ';') < 0 && normalizeEscapes(u.RawPath) == u.RawPath {
		return u
	}
	changed := *u
	changed.Path = clean
	changed.RawPath = Path(normalizeEscapes(u.RawPath))
	changed.RawQuery = strings.Replace(u.RawQuery, ";", "&", -1)
	return &changed
}

var escape = regexp.MustCompile(`%[0-9A-Fa-f]{2}`)

// normalizeEscapes returns an escaped path with upper-case digits in its escapes, and without escapes of
// unreserved characters (RFC 3986, 6.2.2). Traefik normalizes request paths the same way.
func normalizeEscapes(escaped string) string {
	return escape.ReplaceAllStringFunc(escaped, func(text string) string {
		n, err := strconv.ParseUint(text[1:], 16, 8)
		if err == nil && isUnreserved(byte(n)) {
			return string(rune(n))
		}
		return strings.ToUpper(text)
	})
}

func isUnreserved(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '.' ||
		c == '_' || c == '~'
}

// QueryValue returns the values of a query parameter, separated by commas. As in Traefik, a semicolon ends a
// value. The standard library would drop a parameter with a semicolon.
func QueryValue(u *url.URL, name string) string {
	parsed, _ := url.ParseQuery(CleanURL(u).RawQuery) // an error concerns other parameters
	return strings.Join(parsed[name], ",")
}
