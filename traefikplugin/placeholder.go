package traefikplugin

import (
	"net"
	"net/http"
	"net/url"
	"path"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
)

// placeholder describes the source and the secrecy of a placeholder's value.
type placeholder struct {
	fromHost, fromPath bool // derived from the host or the path
	secret             bool // may be a credential, for every parameter
	address            bool // may be a client's address; Caddy treats no other value as an address
}

// placeholders maps names to placeholders. Names that take a parameter end with a dot.
var placeholders = map[string]placeholder{
	"client_ip": {address: true},
	"remote_ip": {address: true},
	"host":      {fromHost: true},
	"hostport":  {fromHost: true},
	"labels.":   {fromHost: true},
	"port":      {},
	"scheme":    {},
	"method":    {},
	"uri":       {fromPath: true, secret: true},
	"path":      {fromPath: true},
	"path.":     {fromPath: true, address: true},
	"dir":       {fromPath: true},
	"file":      {fromPath: true, address: true},
	"query":     {secret: true, address: true},
	"query.":    {address: true},
	"header.":   {address: true},
	"cookie.":   {secret: true, address: true},
}

// pieceValue returns the text of a piece for a request. Caddy's placeholder has the same text, so both
// proxies make the same key.
func pieceValue(p *piece, r *http.Request) string {
	switch p.name {
	case "":
		return p.text
	case "client_ip":
		text, _ := p.addresses.client(r)
		return text
	case "remote_ip":
		return serve.Connection(r)
	case "host":
		return serve.HostOf(r)
	case "hostport":
		return strings.ToLower(r.Host)
	case "labels.":
		return serve.HostLabel(r, p.n)
	case "port":
		_, port, _ := net.SplitHostPort(r.Host) // empty without a port
		return port
	case "scheme":
		if r.TLS != nil {
			return "https"
		}
		return "http"
	case "method":
		return r.Method
	case "path":
		return serve.NormalizePath(r.URL.Path)
	case "query.":
		return serve.QueryValue(r.URL, p.text)
	case "header.":
		return serve.HeaderValue(r.Header, p.text)
	case "cookie.":
		return serve.CookieValue(r, p.text)
	}
	return urlPieceValue(p, serve.CleanURL(r.URL))
}

// urlPieceValue returns the text of a piece that depends only on the URL.
func urlPieceValue(p *piece, u *url.URL) string {
	dir, file := path.Split(u.Path)
	switch p.name {
	case "uri":
		return u.RequestURI()
	case "path.":
		return elementAt(strings.Split(strings.TrimPrefix(u.Path, "/"), "/"), p.n)
	case "dir":
		return dir
	case "file":
		return file
	}
	return u.RawQuery // for "query"
}

// elementAt returns an element of a list, or "" beyond its ends.
func elementAt(list []string, i int) string {
	if i < 0 || i >= len(list) {
		return ""
	}
	return list[i]
}
