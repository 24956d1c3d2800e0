package reading

import (
	"net/url"
	"path"
	"regexp"
	"strconv"
	"strings"
)

// NormalizePath normalizes a path for keys: it removes empty, "." and ".." segments, with which a client
// could name one page in many ways. Traefik normalizes request paths the same way. Rules normalize paths by
// policy.NormalPath.
func NormalizePath(text string) string {
	if !strings.Contains(text, "//") && !strings.Contains(text, "/.") {
		return text
	}
	clean := path.Clean(text)
	if clean != "/" && strings.HasSuffix(text, "/") {
		clean += "/"
	}
	return clean
}

// CleanURL normalizes the URL of a request for keys. It normalizes the path, uses one form of each escape,
// and replaces semicolons in the query by &, as Traefik does. If nothing changes, it returns u.
func CleanURL(u *url.URL) *url.URL {
	clean := NormalizePath(u.Path)
	if clean == u.Path && strings.IndexByte(u.RawQuery, ';') < 0 && normalizeEscapes(u.RawPath) == u.RawPath {
		return u
	}
	changed := *u
	changed.Path = clean
	changed.RawPath = NormalizePath(normalizeEscapes(u.RawPath))
	changed.RawQuery = strings.Replace(u.RawQuery, ";", "&", -1)
	return &changed
}

var escape = regexp.MustCompile(`%[0-9A-Fa-f]{2}`)

// normalizeEscapes returns an escaped path with upper-case digits in its escapes, and without escapes of
// unreserved characters (RFC 3986, 6.2.2). Traefik normalizes request paths the same way.
func normalizeEscapes(escaped string) string {
	return escape.ReplaceAllStringFunc(escaped, func(text string) string {
		n, err := strconv.ParseUint(text[1:], 16, 8)
		if plain := string(rune(n)); err == nil && unreserved.MatchString(plain) {
			return plain
		}
		return strings.ToUpper(text)
	})
}

var unreserved = regexp.MustCompile("^[A-Za-z0-9._~-]$")
