package reading

import (
	"encoding/json"
	"net"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
)

// pieceValues returns the different values of a piece in a request, each in one form; at least one, which may
// be "". Both proxies, and all settings with placeholders, have these values.
func pieceValues(p *piece, q *Input) []string {
	r := q.HTTP
	values := []string{""}
	switch p.name {
	case "":
		values[0] = p.text
	case "client_ip":
		values[0] = policy.UnknownAddress
		if address, _ := q.Clients.Address(r); address.IsValid() {
			values[0] = address.String()
		} else {
			q.Clients.Unknown()
		}
	case "remote_ip":
		values[0] = Connection(r)
		if values[0] == policy.UnknownAddress {
			q.Clients.Unknown()
		}
	case "query.":
		values = QueryValues(r.URL, p.text)
	case "header.":
		values = policy.HeaderValues(r.Header, p.text)
	case "cookie.":
		values = CookieValues(r, p.text)
	case "other":
		values[0] = p.other.Value(q)
	default:
		values[0] = partOf(p, r)
	}
	if p.isKey {
		values = policy.KeyValues(values, q.AcceptedKey)
	}
	if len(values) == 0 {
		return []string{""}
	}
	return values
}

// partOf returns the part of a request for which a placeholder stands that has one value.
func partOf(p *piece, r *http.Request) string {
	switch p.name {
	case "host":
		return HostOf(r)
	case "hostport":
		if port := portOf(r); port != "" {
			return net.JoinHostPort(HostOf(r), port)
		}
		return HostOf(r)
	case "port":
		return portOf(r)
	case "labels.":
		labels := strings.Split(HostOf(r), ".") // the last label has the number 0
		return ElementAt(labels, len(labels)-1-p.n)
	case "scheme":
		if r.TLS != nil {
			return "https"
		}
		return "http"
	case "method":
		return r.Method
	case "path":
		return NormalizePath(r.URL.Path)
	}
	u := CleanURL(r.URL)
	dir, file := path.Split(u.Path)
	switch p.name {
	case "uri":
		return u.RequestURI()
	case "path.":
		return ElementAt(strings.Split(strings.TrimPrefix(u.Path, "/"), "/"), p.n)
	case "dir":
		return dir
	case "file":
		return file
	}
	return u.RawQuery // for "query"
}

// portOf returns the port in a request's host, or "".
func portOf(r *http.Request) string {
	_, port, _ := net.SplitHostPort(r.Host)
	if n, err := strconv.ParseUint(port, 10, 16); err == nil {
		return strconv.FormatUint(n, 10)
	}
	return port
}

// ElementAt returns an element of a list, or "" beyond its ends.
func ElementAt(list []string, i int) string {
	if i < 0 || i >= len(list) {
		return ""
	}
	return list[i]
}

// CookieValues returns the different values of the cookies with a name, without quotes and percent-decoded.
// Case matters in the name. Servers read more cookies than net/http does.
func CookieValues(r *http.Request, name string) []string {
	var values []string
	for _, line := range policy.HeaderValues(r.Header, "Cookie") {
		for _, one := range strings.Split(line, ";") {
			key, value, _ := strings.Cut(one, "=")
			if strings.TrimSpace(key) != name {
				continue
			}
			values = append(values, cookieTexts(strings.TrimSpace(value))...)
		}
	}
	return policy.Distinct(values)
}

// cookieTexts returns the texts that servers read in the value of a cookie: without quotes, and decoded. Also
// in quotes, Python decodes backslashes, and Express reads j:"a" as a.
func cookieTexts(value string) []string {
	quoted := len(value) > 1 && value[0] == '"' && value[len(value)-1] == '"'
	if quoted {
		value = value[1 : len(value)-1]
	}
	plain := policy.Unescape(value)
	if strings.HasPrefix(plain, "j:") {
		var text string
		if json.Unmarshal([]byte(plain[2:]), &text) == nil {
			plain = text
		}
	}
	texts := []string{plain}
	if quoted && strings.Contains(value, `\`) {
		texts = append(texts, policy.Unescape(withoutBackslashes(value)))
	}
	return texts
}

// withoutBackslashes replaces a backslash and three octal digits by their byte, and removes any other
// backslash.
func withoutBackslashes(text string) string {
	var plain []byte
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+1 < len(text) {
			i++
			if i+2 < len(text) {
				if n, err := strconv.ParseUint(text[i:i+3], 8, 8); err == nil {
					plain = append(plain, byte(n))
					i += 2
					continue
				}
			}
		}
		plain = append(plain, text[i])
	}
	return string(plain)
}

// QueryValues returns the different values of a query parameter. These names count as q, too: q[] in lists,
// [q] for qs, and for PHP q after spaces, or with text after NUL. As in Traefik, a semicolon ends a value.
// The standard library would drop a parameter with a semicolon or an invalid escape, which other servers
// read.
func QueryValues(u *url.URL, name string) []string {
	var values []string
	for _, one := range strings.Split(CleanURL(u).RawQuery, "&") {
		key, value, _ := strings.Cut(one, "=")
		key = policy.Unescape(strings.ReplaceAll(key, "+", " "))
		key, _, _ = strings.Cut(strings.TrimLeft(key, " "), "\x00")
		if key == name || strings.HasPrefix(key, name+"[") || strings.HasPrefix(key, "["+name+"]") {
			values = append(values, policy.Unescape(strings.ReplaceAll(value, "+", " ")))
		}
	}
	return policy.Distinct(values)
}
