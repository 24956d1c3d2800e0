package caddymodule

import (
	"cmp"
	"context"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// expandShorthands replaces short placeholders, such as {client_ip}, by their full names. The Caddyfile
// parser replaces Caddy's short placeholders, but not in JSON, and not {remote_ip}, which is a shorthand of
// the Traefik plugin. A placeholder that nothing replaces would be empty, and all clients would share a
// quota.
func expandShorthands(text string) string {
	segment := caddyfile.Segment{{Text: text}}
	httpcaddyfile.NewShorthandReplacer().ApplyToSegment(&segment)
	text = strings.ReplaceAll(segment[0].Text, "{remote_ip}", "{http.request.remote.host}")
	// net/http moves the Host header from the headers to Request.Host.
	return hostHeader.ReplaceAllLiteralString(text, "{http.request.host}")
}

var hostHeader = regexp.MustCompile(`\{http\.request\.header\.(?i:host)\}`)

// template is text with placeholders.
type template struct {
	text   string // the text, with full names of placeholders; never ""
	single string // the name of the placeholder if the text is nothing else, else ""
	fixed  bool   // the text has no placeholder
}

// parseText implements serve.ParseText. configured may have short placeholders.
func parseText(field, configured string) (serve.Text, error) {
	t := &template{text: expandShorthands(configured)}
	if err := checkPlaceholders(field, t.text, configured); err != nil {
		return nil, err
	}
	t.fixed = !strings.ContainsAny(t.text, "{}")
	if strings.HasPrefix(t.text, "{") && strings.HasSuffix(t.text, "}") &&
		!strings.ContainsAny(t.text[1:len(t.text)-1], `{}\`) {
		t.single = t.text[1 : len(t.text)-1]
	}
	return t, nil
}

// Of implements serve.Text.
func (t *template) Of(q *serve.Request) string {
	return t.evaluate(q, func(value string) string { return value })
}

// evaluate returns the text for a request. address gets the values that may be addresses, which are all but
// hosts.
func (t *template) evaluate(q *serve.Request, address func(value string) string) string {
	if t.fixed {
		return t.text
	}
	repl := q.Data.(*caddy.Replacer)
	value := func(name, text string) string {
		text = valueInKey(q.HTTP, name, text)
		if strings.HasPrefix(name, hostPrefix) {
			return text
		}
		return address(text)
	}
	if t.single != "" {
		text, _ := repl.GetString(t.single)
		return value(t.single, text)
	}
	// ReplaceFunc returns only errors of its function, which returns none.
	text, _ := repl.ReplaceFunc(t.text, func(name string, text any) (any, error) {
		return value(name, caddy.ToString(text)), nil
	})
	return text
}

// braces matches an escaped brace, a placeholder, and an unclosed placeholder.
var braces = regexp.MustCompile(`\\\{|\{([^}]*)(\}|$)`)

// placeholdersIn returns the names of the placeholders in a text, and the text after an unclosed brace.
func placeholdersIn(text string) (names []string, unclosed string) {
	for _, match := range braces.FindAllStringSubmatch(text, -1) {
		switch {
		case match[2] != "":
			names = append(names, match[1])
		case match[0] != `\{`:
			unclosed = match[0]
		}
	}
	return names, unclosed
}

// checkPlaceholders returns an error for text with a placeholder that cannot exist, and so would be empty for
// all requests. text has no shorthands. configured is the text as the user wrote it.
func checkPlaceholders(field, text, configured string) error {
	names, wrong := placeholdersIn(text)
	if i := slices.IndexFunc(names, func(name string) bool { return !mayExist(name) }); i >= 0 {
		wrong = "{" + names[i] + "}"
	}
	if wrong == "" {
		return nil
	}
	return &ratelimit.FieldError{Field: field, Value: configured,
		Want: "text with placeholders such as {client_ip} or {header.X-User}: " +
			wrong + ` is none (a placeholder that a module such as map sets must have a dot in its ` +
			`name, and a brace that is text is \{)`}
}

// mayExist reports whether a placeholder can have a value. The names in http.request are fixed. Other names
// may belong to modules that set them during a request.
func mayExist(name string) (may bool) {
	if !strings.Contains(name, ".") || strings.ContainsAny(name, " \"{") {
		return false
	}
	if !strings.HasPrefix(name, "http.request.") {
		return true
	}
	// The placeholders of these groups have a value only for some connections, or in an older Caddy for some
	// requests.
	for _, group := range []string{"http.request.tls.", cookiePrefix} {
		if strings.HasPrefix(name, group) {
			return true
		}
	}
	defer func() {
		if recover() != nil {
			may = true // the placeholder exists, but needs a real connection
		}
	}()
	local := context.WithValue(context.Background(), http.LocalAddrContextKey, net.Addr(&net.TCPAddr{}))
	r, err := http.NewRequestWithContext(local, http.MethodGet, "http://localhost/", nil)
	if err != nil {
		return true
	}
	_, may = replacerOf(r).Get(name)
	return may
}

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
			return serve.Network(cmp.Or(address, policy.UnknownAddress), v4, v6)
		}
	}
	return t.evaluate(q, func(value string) string { return serve.Network(value, v4, v6) })
}

// The prefixes of the placeholders of a request.
const (
	hostPrefix   = "http.request.host" // also for the host with its port
	labelPrefix  = hostPrefix + ".labels."
	uriPrefix    = "http.request.uri"
	headerPrefix = "http.request.header."
	cookiePrefix = "http.request.cookie."
)

// valueInKey returns the text for a placeholder. The Traefik plugin uses the same text, so that both proxies
// have the same keys, costs, routes and API keys.
func valueInKey(r *http.Request, placeholder, text string) string {
	switch {
	case "{"+placeholder+"}" == clientIP:
		return cmp.Or(text, policy.UnknownAddress)
	case placeholder == "http.request.remote.host":
		return serve.Connection(r)
	case placeholder == hostPrefix:
		return serve.HostOf(r)
	case strings.HasPrefix(placeholder, labelPrefix):
		n, _ := strconv.Atoi(placeholder[len(labelPrefix):]) // checkPlaceholders has found that it exists
		return serve.HostLabel(r, n)
	case placeholder == "http.request.hostport":
		return strings.ToLower(text)
	case strings.HasPrefix(placeholder, headerPrefix):
		return serve.HeaderValue(r.Header, http.CanonicalHeaderKey(placeholder[len(headerPrefix):]))
	case strings.HasPrefix(placeholder, cookiePrefix):
		return serve.CookieValue(r, placeholder[len(cookiePrefix):])
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
		header, ok := strings.CutPrefix(name, headerPrefix)
		switch {
		case ok:
			header = http.CanonicalHeaderKey(header)
			parts.Headers = append(parts.Headers, header)
			if name == t.single {
				parts.Header = header
			}
		case strings.HasPrefix(name, "http.auth."):
			parts.User = true
		case strings.HasPrefix(name, hostPrefix):
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
	if name, ok := strings.CutPrefix(placeholder, headerPrefix); ok {
		return settings.CredentialHeader(name)
	}
	if named := namedPlaceholder.FindStringSubmatch(placeholder); named != nil {
		return settings.CredentialName(named[1])
	}
	return secretPlaceholder.MatchString(placeholder) // matches the query of a URI, too
}
