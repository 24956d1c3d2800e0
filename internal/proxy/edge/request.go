package edge

import (
	"net/url"
	"path"
	"strings"
)

// Host is a host as it is in keys: in lower case, and without the dot that may end a full
// name.
func Host(host string) string {
	return strings.TrimSuffix(strings.ToLower(host), ".")
}

// Path is a path as it is in keys: without empty, "." and ".." parts, because a client
// could otherwise name one page in many ways. Traefik changes the path of a request so.
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

// CleanURL is the URL of a request as it is in keys: its path as Path gives it, and its
// query with & instead of a semicolon, as in Traefik. It is u itself if u is so already.
func CleanURL(u *url.URL) *url.URL {
	clean := Path(u.Path)
	if clean == u.Path && strings.IndexByte(u.RawQuery, ';') < 0 {
		return u
	}
	changed := *u
	changed.Path = clean
	changed.RawPath = Path(u.RawPath)
	changed.RawQuery = strings.Replace(u.RawQuery, ";", "&", -1)
	return &changed
}

// QueryValue is the text of a query parameter: its values, separated by commas. As in
// Traefik, a semicolon ends a value. The standard library drops a parameter that has one.
func QueryValue(u *url.URL, name string) string {
	parsed, _ := url.ParseQuery(CleanURL(u).RawQuery) // an error is about other parameters
	values := parsed[name]
	if len(values) == 1 {
		return values[0]
	}
	return strings.Join(values, ",")
}
