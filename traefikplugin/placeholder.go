package traefikplugin

import (
	"net"
	"net/http"
	"path"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
)

// value is the text of a piece for a request. It is the same as that of Caddy's
// placeholder, so that both proxies make the same key. The frequent sources come first.
func value(p *piece, r *http.Request, a *addresses) string {
	if p.from == fromRemoteIP {
		return hostOf(r.RemoteAddr)
	}
	if p.from == fromHeader {
		return joined(r.Header[p.text])
	}
	return otherValue(p, r, a)
}

func otherValue(p *piece, r *http.Request, a *addresses) string {
	switch p.from {
	case fromText:
		return p.text
	case fromClientIP:
		text, _ := a.client(r)
		return text
	case fromHost:
		return serve.Host(hostOf(r.Host))
	case fromMethod:
		return r.Method
	case fromPath:
		return serve.Path(r.URL.Path)
	case fromQuery:
		return serve.QueryValue(r.URL, p.text)
	case fromCookie:
		return cookieOf(r, p.text)
	}
	return rareValue(p, r)
}

func rareValue(p *piece, r *http.Request) string {
	u := serve.CleanURL(r.URL)
	switch p.from {
	case fromHostPort:
		return strings.ToLower(r.Host)
	case fromPort:
		_, port, _ := net.SplitHostPort(r.Host) // without a port it is empty
		return port
	case fromScheme:
		if r.TLS != nil {
			return "https"
		}
		return "http"
	case fromURI:
		return u.RequestURI()
	case fromRawQuery:
		return u.RawQuery
	case fromDir:
		dir, _ := path.Split(u.Path)
		return dir
	case fromFile:
		_, file := path.Split(u.Path)
		return file
	case fromLabel:
		labels := strings.Split(strings.ToLower(hostOf(r.Host)), ".")
		if p.n < len(labels) {
			return labels[len(labels)-1-p.n]
		}
	case fromPart:
		parts := strings.Split(strings.TrimPrefix(u.Path, "/"), "/")
		if p.n < len(parts) {
			return parts[p.n]
		}
	}
	return ""
}

// cookieOf is the value of the first cookie of that name, without regard to case.
func cookieOf(r *http.Request, name string) string {
	for _, c := range r.Cookies() {
		if strings.EqualFold(c.Name, name) {
			return c.Value
		}
	}
	return ""
}

// joined is the text of several values of one name.
func joined(values []string) string {
	if len(values) == 1 {
		return values[0]
	}
	return strings.Join(values, ",")
}

// hostOf returns an address without its port.
func hostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return host
}
