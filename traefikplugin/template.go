package traefikplugin

import (
	"net"
	"net/http"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

const (
	defaultKey = "{client_ip}"
	wantKey    = "text with {client_ip}, {remote_ip}, {host}, {method}, {path}, {header.NAME}, {cookie.NAME} or {query.NAME}, each in one pair of braces"
)

// source is where a piece of a template comes from.
type source uint8

const (
	fromText source = iota
	fromClientIP
	fromRemoteIP
	fromHost
	fromMethod
	fromPath
	fromHeader
	fromCookie
	fromQuery
	fromSeveral // a template of several pieces, or of none
)

// sources are the placeholders without a name of their own.
var sources = map[string]source{
	"client_ip": fromClientIP,
	"remote_ip": fromRemoteIP,
	"host":      fromHost,
	"method":    fromMethod,
	"path":      fromPath,
}

// piece is a part of a template: text, or what a request says.
type piece struct {
	from source
	text string // the text itself, or the name of a header, cookie or parameter
}

// template is a key, or a cost, in pieces.
type template []piece

// parseTemplate cuts text into pieces. An error names the field.
func parseTemplate(field, text string) (template, error) {
	var t template
	rest := text
	for rest != "" {
		at := strings.IndexAny(rest, "{}")
		if at < 0 {
			t = append(t, piece{fromText, rest})
			break
		}
		if at > 0 {
			t = append(t, piece{fromText, rest[:at]})
			rest = rest[at:]
		}
		end := strings.IndexByte(rest, '}')
		if end <= 0 {
			return nil, &ratelimit.FieldError{Field: field, Value: text, Want: wantKey}
		}
		p, ok := parsePlaceholder(rest[1:end])
		if !ok {
			return nil, &ratelimit.FieldError{Field: field, Value: text, Want: wantKey}
		}
		t = append(t, p)
		rest = rest[end+1:]
	}
	return t, nil
}

// parsePlaceholder reads what stands between braces.
func parsePlaceholder(name string) (piece, bool) {
	if from, ok := sources[name]; ok {
		return piece{from, ""}, true
	}
	dot := strings.IndexByte(name, '.')
	if dot < 0 || dot == len(name)-1 {
		return piece{}, false
	}
	kind, name := name[:dot], name[dot+1:]
	switch kind {
	case "header":
		if http.CanonicalHeaderKey(name) == "Host" {
			return piece{fromHost, ""}, true // Go keeps it apart from the headers
		}
		return piece{fromHeader, http.CanonicalHeaderKey(name)}, true
	case "cookie":
		return piece{fromCookie, name}, true
	case "query":
		return piece{fromQuery, name}, true
	}
	return piece{}, false
}

// secret reports whether what a template gives is a credential.
func (t template) secret() bool {
	for _, p := range t {
		if p.from == fromCookie || p.from == fromHeader && edge.CredentialHeader(p.text) || p.from == fromQuery && edge.CredentialName(p.text) {
			return true
		}
	}
	return false
}

// fixed reports whether a template is the same text for all requests.
func (t template) fixed() bool {
	for _, p := range t {
		if p.from != fromText {
			return false
		}
	}
	return true
}

// directly reads {client_ip} where it is the address of the connection, as most
// often it is: that is the shorter way.
func (t template) directly() {
	for i := range t {
		if t[i].from == fromClientIP {
			t[i].from = fromRemoteIP
		}
	}
}

// expand puts a request's values in. What it does not have is empty.
func expand(t template, r *http.Request, a *addresses) string {
	if len(t) == 1 {
		return value(&t[0], r, a)
	}
	return expandAll(t, r, a)
}

func expandAll(t template, r *http.Request, a *addresses) string {
	text := ""
	for i := range t {
		text += value(&t[i], r, a)
	}
	return text
}

// value is what a piece stands for. Values are those of the Caddy placeholders
// of the same meaning, so that both proxies make the same key. The frequent ones
// come first: see handler.
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
		return a.client(r)
	case fromHost:
		return strings.ToLower(hostOf(r.Host))
	case fromMethod:
		return r.Method
	case fromPath:
		return r.URL.Path
	case fromQuery:
		return joined(r.URL.Query()[p.text])
	case fromCookie:
		return cookieOf(r, p.text)
	}
	return ""
}

// cookieOf is the value of the first cookie of that name, in any case.
func cookieOf(r *http.Request, name string) string {
	for _, c := range r.Cookies() {
		if strings.EqualFold(c.Name, name) {
			return c.Value
		}
	}
	return ""
}

// joined is what several values of one name are taken for.
func joined(values []string) string {
	if len(values) == 1 {
		return values[0]
	}
	return strings.Join(values, ",")
}

// hostOf cuts the port off; text without one stays.
func hostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return host
}
