package serve

import (
	"encoding/base64"
	"net/http"
	"net/url"
	"strings"
)

// HeaderValue returns the values of a request header, separated by commas. Equal values count as one. Names
// are equal without case: another middleware may have written a name that is not canonical. name is
// canonical.
func HeaderValue(h http.Header, name string) string {
	values := h[name]
	for other, more := range h {
		if len(other) == len(name) && other != name && strings.EqualFold(other, name) {
			values = append(append([]string(nil), values...), more...)
		}
	}
	if len(values) == 1 && !hasScheme(name) {
		return values[0]
	}
	text := ""
	seen := map[string]bool{}
	for _, value := range values {
		if hasScheme(name) {
			value = credentials(value)
		}
		if !seen[value] {
			if len(seen) > 0 {
				text += ","
			}
			text += value
			seen[value] = true
		}
	}
	return text
}

// hasScheme reports whether the value of a header begins with an authentication scheme. name is canonical.
func hasScheme(name string) bool { return name == "Authorization" || name == "Proxy-Authorization" }

// credentials returns the one form of a value with an authentication scheme: the scheme in lower case, and
// one space after it. The base64 text of Basic is decoded as leniently as servers do, and encoded again.
func credentials(value string) string {
	value = strings.TrimSpace(value)
	end := strings.IndexAny(value, " \t")
	if end < 0 {
		return value
	}
	scheme := strings.ToLower(value[:end])
	rest := strings.TrimLeft(value[end:], " \t")
	if scheme == "basic" {
		text := standardDigits.Replace(strings.TrimRight(rest, "="))
		if plain, err := base64.RawStdEncoding.DecodeString(text); err == nil {
			rest = base64.StdEncoding.EncodeToString(plain)
		}
	}
	return scheme + " " + rest
}

var standardDigits = strings.NewReplacer("-", "+", "_", "/")

// CookieValue returns the value of the first cookie with a name, without quotes and percent-decoded. Case
// matters in the name.
func CookieValue(r *http.Request, name string) string {
	for _, c := range r.Cookies() {
		if c.Name != name {
			continue
		}
		plain, err := url.PathUnescape(c.Value)
		if err != nil {
			return c.Value
		}
		return plain
	}
	return ""
}

// HostLabel returns a label of a request's host, or "". The last label has the number 0.
func HostLabel(r *http.Request, n int) string {
	labels := strings.Split(HostOf(r), ".")
	if n >= len(labels) {
		return ""
	}
	return labels[len(labels)-1-n]
}
