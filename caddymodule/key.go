package caddymodule

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
)

// clientIP is the full name of the placeholder {client_ip}.
const clientIP = "{http.vars." + caddyhttp.ClientIPVarKey + "}"

// Key implements serve.Text. It looks up a client's address or a single placeholder directly, which is faster
// than replacing text.
func (t *template) Key(q *serve.Request, v4, v6 int) string {
	if t.fixed {
		return t.text
	}
	if t.text == clientIP {
		if address, ok := caddyhttp.GetVar(q.HTTP.Context(), caddyhttp.ClientIPVarKey).(string); ok {
			return serve.Network(address, v4, v6)
		}
	}
	repl := q.Data.(*caddy.Replacer)
	if t.single != "" {
		value, _ := repl.GetString(t.single)
		return serve.Network(valueInKey(q.HTTP, t.single, value), v4, v6)
	}
	// ReplaceFunc returns only errors of its function, which returns none.
	text, _ := repl.ReplaceFunc(t.text, func(name string, value any) (any, error) {
		return serve.Network(valueInKey(q.HTTP, name, caddy.ToString(value)), v4, v6), nil
	})
	return text
}

// uriPrefix is the prefix of the placeholders of a URI.
const uriPrefix = "http.request.uri"

// valueInKey returns the text for a placeholder in a key. The Traefik plugin uses the same text, so that both
// proxies use the same key.
func valueInKey(r *http.Request, placeholder, text string) string {
	switch {
	case placeholder == "http.request.host":
		return serve.HostOf(r)
	case strings.HasPrefix(placeholder, "http.request.host"): // with the port, or a label
		return strings.ToLower(text)
	case strings.HasPrefix(placeholder, uriPrefix):
		if clean := serve.CleanURL(r.URL); clean != r.URL {
			return valueFor(r, clean, placeholder)
		}
	}
	return text
}

// valueFor returns the text of a placeholder for a request with the URL u instead of its own.
func valueFor(r *http.Request, u *url.URL, placeholder string) string {
	other := r.WithContext(r.Context())
	other.URL = u
	text, _ := replacerOf(other).GetString(placeholder)
	return text
}

// replacerOf returns a replacer for a request that no server has prepared.
func replacerOf(r *http.Request) *caddy.Replacer {
	repl := caddy.NewReplacer()
	caddyhttp.PrepareRequest(r, repl, nil, &caddyhttp.Server{})
	return repl
}

// Parts implements serve.Text.
func (t *template) Parts() serve.Parts {
	parts := serve.Parts{Fixed: t.fixed}
	names, _ := placeholdersIn(t.text)
	for _, name := range names {
		parts.Placeholders = append(parts.Placeholders, strings.ToLower(name))
		parts.Secret = parts.Secret || isCredential(name)
		header, ok := strings.CutPrefix(name, "http.request.header.")
		switch {
		case ok:
			header = http.CanonicalHeaderKey(header)
			parts.Headers = append(parts.Headers, header)
			if name == t.single {
				parts.Header = header
			}
		case strings.HasPrefix(name, "http.auth."):
			parts.User = true
		case strings.HasPrefix(name, "http.request.host"):
			parts.Host = true
		case strings.Contains(name, "uri.query"): // the query is recorded nowhere
		case strings.HasPrefix(name, uriPrefix), strings.HasPrefix(name, "http.request.orig_uri"):
			parts.Path = true
		}
	}
	return parts
}

var (
	secretPlaceholder = regexp.MustCompile(`^http\.request\.(?:cookie\.|(?:orig_)?uri(?:\.query)?$)`)
	namedPlaceholder  = regexp.MustCompile(`^http\.(?:request\.uri\.query|auth\.user)\.(.*)`)
)

// isCredential reports whether a placeholder may stand for a secret.
func isCredential(placeholder string) bool {
	if name, ok := strings.CutPrefix(placeholder, "http.request.header."); ok {
		return settings.CredentialHeader(name)
	}
	if named := namedPlaceholder.FindStringSubmatch(placeholder); named != nil {
		return settings.CredentialName(named[1])
	}
	return secretPlaceholder.MatchString(placeholder) // also the query of a URI
}
