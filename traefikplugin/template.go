package traefikplugin

import (
	"net/http"
	"strconv"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

const wantKey = "text with {client_ip}, {remote_ip}, {host}, {method}, {path}, {header.NAME}, " +
	"{cookie.NAME}, {query.NAME} or another " +
	"placeholder of the documentation, each in one pair of braces"

// source is where the text of a piece comes from.
type source = uint8

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
	fromHostPort
	fromPort
	fromScheme
	fromURI
	fromRawQuery
	fromDir
	fromFile
	fromLabel // of the host, counted from the right
	fromPart  // of the path
)

// sources are the placeholders that have no parameter.
var sources = map[string]source{
	"client_ip":   fromClientIP,
	"remote_ip":   fromRemoteIP,
	"remote_host": fromRemoteIP,
	"host":        fromHost,
	"hostport":    fromHostPort,
	"port":        fromPort,
	"scheme":      fromScheme,
	"method":      fromMethod,
	"uri":         fromURI,
	"path":        fromPath,
	"dir":         fromDir,
	"file":        fromFile,
	"query":       fromRawQuery,
}

// piece is a part of a template: fixed text, or a value of the request.
type piece struct {
	from source
	text string // fixed text, or the name of a header, cookie or query parameter
	n    int    // which label of the host, or part of the path
}

// template is an serve.Text.
type template struct {
	pieces    []piece
	addresses *addresses
}

// parseText is an serve.ParseText.
func (a *addresses) parseText(field, text string) (serve.Text, error) {
	t := &template{addresses: a}
	rest := text
	for rest != "" {
		at := strings.IndexAny(rest, "{}")
		if at < 0 {
			t.pieces = append(t.pieces, piece{from: fromText, text: rest})
			break
		}
		if at > 0 {
			t.pieces = append(t.pieces, piece{from: fromText, text: rest[:at]})
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
		if p.from == fromClientIP && a.plain {
			p.from = fromRemoteIP // which takes fewer steps
		}
		t.pieces = append(t.pieces, p)
		rest = rest[end+1:]
	}
	return t, nil
}

// parsePlaceholder reads the text between two braces.
func parsePlaceholder(name string) (piece, bool) {
	if from, ok := sources[name]; ok {
		return piece{from: from}, true
	}
	dot := strings.IndexByte(name, '.')
	if dot < 0 || dot == len(name)-1 {
		return piece{}, false
	}
	kind, rest := name[:dot], name[dot+1:]
	switch kind {
	case "header":
		if http.CanonicalHeaderKey(rest) == "Host" {
			return piece{from: fromHost}, true // Go has it in Request.Host, not in the headers
		}
		return piece{from: fromHeader, text: http.CanonicalHeaderKey(rest)}, true
	case "cookie":
		return piece{from: fromCookie, text: rest}, true
	case "query":
		return piece{from: fromQuery, text: rest}, true
	}
	n, err := strconv.Atoi(rest)
	if err != nil || n < 0 {
		return piece{}, false
	}
	switch kind {
	case "labels":
		return piece{from: fromLabel, n: n}, true
	case "path":
		return piece{from: fromPart, n: n}, true
	}
	return piece{}, false
}

// Secret implements serve.Text.
func (t *template) Secret() bool {
	for _, p := range t.pieces {
		if p.from == fromURI || p.from == fromRawQuery {
			return true // the query may have a secret
		}
		if p.from == fromCookie || p.from == fromHeader && settings.CredentialHeader(p.text) ||
			p.from == fromQuery && settings.CredentialName(p.text) {
			return true
		}
	}
	return false
}

// Fixed implements serve.Text.
func (t *template) Fixed() bool {
	for _, p := range t.pieces {
		if p.from != fromText {
			return false
		}
	}
	return true
}

// Shares implements serve.Text.
func (t *template) Shares(other serve.Text) bool {
	for _, p := range t.pieces {
		for _, q := range other.(*template).pieces {
			if p.from != fromText && p == q {
				return true
			}
		}
	}
	return false
}

// Parts implements serve.Text.
func (t *template) Parts() serve.Parts {
	parts := serve.Parts{}
	for _, p := range t.pieces {
		switch p.from {
		case fromHost, fromHostPort, fromLabel:
			parts.Host = true
		case fromPath, fromURI, fromDir, fromFile, fromPart:
			parts.Path = true
		case fromHeader:
			parts.Headers = append(parts.Headers, p.text)
			if len(t.pieces) == 1 {
				parts.Header = p.text
			}
		case fromRemoteIP:
			parts.Connection = len(t.pieces) == 1
		}
	}
	return parts
}

// Of implements serve.Text. A value that the request does not have is empty.
func (t *template) Of(q *serve.Request) string {
	if q == nil {
		return t.Key(&serve.Request{}, 0, 0)
	}
	text := ""
	for i := range t.pieces {
		text += value(&t.pieces[i], q.HTTP, t.addresses)
	}
	return text
}

// Key implements serve.Text.
func (t *template) Key(q *serve.Request, v4, v6 int) string {
	text := ""
	for i := range t.pieces {
		part := value(&t.pieces[i], q.HTTP, t.addresses)
		if isClient(t.pieces[i].from) && serve.MaybeAddress(part, v4) {
			part = serve.Network(part, v4, v6)
		}
		text += part
	}
	return text
}

// isClient reports whether a source may give the address of a client. No other source
// gives text that Caddy would take for an address.
func isClient(from source) bool {
	switch from {
	case fromClientIP, fromRemoteIP, fromHeader, fromCookie, fromQuery, fromRawQuery, fromFile, fromPart:
		return true
	}
	return false
}
