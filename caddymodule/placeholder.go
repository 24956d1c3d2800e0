package caddymodule

import (
	"context"
	"net"
	"net/http"
	"regexp"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/reading"
)

// expandShorthands replaces short placeholders, such as {client_ip}, by their full names. The Caddyfile
// parser replaces Caddy's short placeholders, but not in JSON, and not {remote_ip}, which is a shorthand of
// the Traefik plugin. A placeholder that nothing replaces would be empty, and all clients would share a
// quota.
func expandShorthands(text string) string {
	segment := caddyfile.Segment{{Text: text}}
	httpcaddyfile.NewShorthandReplacer().ApplyToSegment(&segment)
	return strings.ReplaceAll(segment[0].Text, "{remote_ip}", "{http.request.remote.host}")
}

// parseText implements reading.ParseText. configured may have short placeholders.
func parseText(field, configured string) (*reading.Text, error) {
	text := expandShorthands(configured)
	t := &reading.Text{}
	unclosed, rest := "", 0
	add := func(end int) { t.AddText(plainBraces.Replace(text[rest:end])) }
	for _, at := range braces.FindAllStringSubmatchIndex(text, -1) {
		switch {
		case at[2] < 0: // an escaped brace
			continue
		case at[4] == at[5]:
			unclosed = text[at[0]:]
		}
		add(at[0])
		rest = at[1]
		name := text[at[2]:at[3]]
		if unclosed == "" && !t.Add(commonName(name)) {
			if !mayExist(name) {
				unclosed = "{" + name + "}"
			}
			t.AddCustom(name, other(name), partsOf(name))
		}
		if unclosed != "" {
			return nil, wrongPlaceholder(field, configured, unclosed)
		}
	}
	add(len(text))
	return t, nil
}

// braces matches an escaped brace, a placeholder, and an unclosed placeholder.
var braces = regexp.MustCompile(`\\\{|\{([^}]*)(\}|$)`)

var plainBraces = strings.NewReplacer(`\{`, "{", `\}`, "}")

// commonNames maps Caddy's names below http.request to the names of both proxies.
var commonNames = map[string]string{
	"remote.host":   "remote_ip",
	"host":          "host",
	"hostport":      "hostport",
	"port":          "port",
	"method":        "method",
	"scheme":        "scheme",
	"uri":           "uri",
	"uri.path":      "path",
	"uri.path.dir":  "dir",
	"uri.path.file": "file",
	"uri.query":     "query",
}

// commonPrefixes has the same for the names with a parameter, in pairs.
var commonPrefixes = []string{"header.", "header.", "cookie.", "cookie.", "host.labels.", "labels.",
	"uri.query.", "query.", "uri.path.", "path."}

// commonName returns the name that both proxies have for a placeholder, or "".
func commonName(name string) string {
	rest, ok := strings.CutPrefix(name, "http.request.")
	switch {
	case name == "http.vars."+caddyhttp.ClientIPVarKey:
		return "client_ip"
	case !ok:
		return ""
	}
	common := commonNames[rest]
	for i := 0; i < len(commonPrefixes) && common == ""; i += 2 {
		if parameter, ok := strings.CutPrefix(rest, commonPrefixes[i]); ok {
			common = commonPrefixes[i+1] + parameter
		}
	}
	return common
}

// other is a placeholder that only Caddy has.
type other string

// Value implements reading.Custom. A placeholder of the URL sees the URL in one form.
func (name other) Value(q *reading.Input) string {
	repl := q.Replacer.(*caddy.Replacer)
	if r := q.HTTP; strings.HasPrefix(string(name), "http.request.uri") {
		if clean := reading.CleanURL(r.URL); clean != r.URL {
			r = r.WithContext(r.Context())
			r.URL = clean
			repl = replacerOf(r)
		}
	}
	text, _ := repl.GetString(string(name))
	return text
}

// wrongPlaceholder returns an error for text with a placeholder that cannot exist, and so would be empty for
// all requests. configured is the text as the user wrote it.
func wrongPlaceholder(field, configured, wrong string) error {
	want := "text with placeholders such as {client_ip} or {header.X-User}: " + wrong +
		` is none (a placeholder that a module such as map sets must have a dot in its name, and a brace ` +
		`that is text is \{)`
	return option.Invalid(field, configured, want)
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
	if strings.HasPrefix(name, "http.request.tls.") {
		return true // these have a value only for some connections
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

// replacerOf returns a replacer for a request that no server has prepared.
func replacerOf(r *http.Request) *caddy.Replacer {
	repl := caddy.NewReplacer()
	caddyhttp.PrepareRequest(r, repl, nil, &caddyhttp.Server{})
	return repl
}

// partsOf returns what a placeholder of Caddy may contain.
func partsOf(name string) reading.Parts {
	secret := strings.HasPrefix(name, "http.request.orig_uri") && !strings.Contains(name, ".path") ||
		strings.HasPrefix(name, "http.request.uri") && strings.Contains(name, "query")
	if property, ok := strings.CutPrefix(name, "http.auth.user."); ok {
		secret = option.CredentialName(property)
	}
	return reading.Parts{Secret: secret, User: strings.HasPrefix(name, "http.auth."),
		Path: strings.HasPrefix(name, "http.request.uri") || strings.HasPrefix(name, "http.request.orig_uri")}
}
