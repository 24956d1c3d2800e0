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

// piece is fixed text or a placeholder in a template.
type piece struct {
	placeholder
	name      string // the name of the placeholder, or "" for fixed text
	text      string // fixed text, or the placeholder's parameter
	n         int    // the parameter as a number
	addresses *addresses
}

// template implements serve.Text.
type template struct{ pieces []piece }

// parseText implements serve.ParseText.
func (a *addresses) parseText(field, text string) (serve.Text, error) {
	t := &template{}
	rest := text
	for rest != "" {
		i := strings.IndexAny(rest, "{}")
		if i < 0 {
			i = len(rest)
		}
		if i > 0 {
			t.pieces = append(t.pieces, piece{text: rest[:i]})
			rest = rest[i:]
			continue
		}
		p, ok := piece{}, false
		end := strings.IndexByte(rest, '}')
		if end > 0 {
			p, ok = a.parsePlaceholder(rest[1:end])
		}
		if !ok {
			return nil, &ratelimit.FieldError{Field: field, Value: text, Want: wantKey}
		}
		t.pieces = append(t.pieces, p)
		rest = rest[end+1:]
	}
	return t, nil
}

// parsePlaceholder parses the text between two braces.
func (a *addresses) parsePlaceholder(name string) (piece, bool) {
	parameter := ""
	if dot := strings.IndexByte(name, '.'); dot >= 0 {
		parameter = name[dot+1:]
		name = name[:dot+1]
	}
	switch {
	case name == "remote_host" || name == "client_ip" && a.plain:
		name = "remote_ip" // the same value in fewer steps
	case name == "header." && strings.EqualFold(parameter, "Host"):
		name = "host" // Go has it in Request.Host, not in the headers
		parameter = ""
	}
	base, ok := placeholders[name]
	if !ok || strings.HasSuffix(name, ".") && parameter == "" ||
		name == "header." && !settings.HeaderName(parameter) {
		return piece{}, false
	}
	p := piece{placeholder: base, name: name, text: parameter, addresses: a}
	switch name {
	case "header.":
		p.text = http.CanonicalHeaderKey(parameter)
		p.secret = settings.CredentialHeader(p.text)
	case "query.":
		p.secret = settings.CredentialName(parameter)
	case "labels.", "path.":
		n, err := strconv.Atoi(parameter)
		if err != nil || n < 0 {
			return piece{}, false
		}
		p.n = n
		p.text = strconv.Itoa(n)
	}
	return p, true
}

// Parts implements serve.Text.
func (t *template) Parts() serve.Parts {
	parts := serve.Parts{Fixed: true}
	for _, p := range t.pieces {
		if p.name != "" {
			parts.Fixed = false
			parts.Placeholders = append(parts.Placeholders, p.name+p.text)
		}
		parts.Secret = parts.Secret || p.secret
		parts.Host = parts.Host || p.fromHost
		parts.Path = parts.Path || p.fromPath
		if p.name == "header." {
			parts.Headers = append(parts.Headers, p.text)
		}
	}
	if len(t.pieces) == 1 {
		parts.Connection = t.pieces[0].name == "remote_ip"
		if len(parts.Headers) == 1 {
			parts.Header = parts.Headers[0]
		}
	}
	return parts
}

// Of implements serve.Text. A placeholder without a value in the request is empty.
func (t *template) Of(q *serve.Request) string {
	if q == nil {
		q = &serve.Request{}
	}
	text := ""
	for i := range t.pieces {
		text += pieceValue(&t.pieces[i], q.HTTP)
	}
	return text
}

// Key implements serve.Text.
func (t *template) Key(q *serve.Request, v4, v6 int) string {
	text := ""
	for i := range t.pieces {
		part := pieceValue(&t.pieces[i], q.HTTP)
		if t.pieces[i].address {
			part = serve.Network(part, v4, v6)
		}
		text += part
	}
	return text
}
