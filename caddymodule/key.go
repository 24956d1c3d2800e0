package caddymodule

import (
	"net/http"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/caddyconfig/caddyfile"
	"github.com/caddyserver/caddy/v2/caddyconfig/httpcaddyfile"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/pgratelimit/pg-ratelimit/internal/edge"
)

// clientIP is the placeholder for which a Caddyfile has {client_ip}.
const clientIP = "{http.vars." + caddyhttp.ClientIPVarKey + "}"

// key is a text with placeholders, sorted by how it is filled in.
type key struct {
	text string
	kind keyKind
	name string // of the placeholder, where it is the whole text
	ipv4 int    // how many bits of an address count; 0 is all
	ipv6 int
}

type keyKind uint8

const (
	fixedKey    keyKind = iota // no placeholder
	clientIPKey                // the client's address and nothing else
	singleKey                  // one placeholder and nothing else
	mixedKey                   // anything
)

// newKey sorts a text; "" is the client's address.
func newKey(text string) key {
	text = expandShorthands(text)
	if text == "" {
		text = clientIP
	}
	k := key{text: text, kind: mixedKey}
	switch {
	case text == clientIP:
		k.kind = clientIPKey
	case !strings.ContainsAny(text, "{}"):
		k.kind = fixedKey
	case strings.HasPrefix(text, "{") && strings.HasSuffix(text, "}") && !strings.ContainsAny(text[1:len(text)-1], `{}\`):
		k.kind, k.name = singleKey, text[1:len(text)-1]
	}
	return k
}

// fixed reports whether the key is the same for all requests.
func (k *key) fixed() bool { return k.kind == fixedKey }

// of is the key of a request. The address, and a lone placeholder, are taken
// from where they are, which costs less than to build a text.
func (k *key) of(r *http.Request, repl *caddy.Replacer) string {
	switch k.kind {
	case fixedKey:
		return k.text
	case clientIPKey:
		if address, ok := caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string); ok {
			return k.mask(address)
		}
	case singleKey:
		value, _ := repl.GetString(k.name)
		return k.value(k.name, value)
	}
	// Its error is that of the function, which has none.
	text, _ := repl.ReplaceFunc(k.text, func(name string, value any) (any, error) {
		return k.value(name, caddy.ToString(value)), nil
	})
	return text
}

// value is what a placeholder counts as. A client may write the host in capitals,
// and means the same.
func (k *key) value(placeholder, text string) string {
	if strings.HasPrefix(placeholder, "http.request.host") {
		return strings.ToLower(text)
	}
	return k.mask(text)
}

// mask cuts an address down to its network.
func (k *key) mask(text string) string {
	if k.ipv4 == 0 && k.ipv6 == 0 {
		return text
	}
	return edge.MaskIP(text, k.ipv4, k.ipv6)
}

// holdsCredential reports whether a placeholder of the key gives a secret.
func (k *key) holdsCredential() bool {
	rest := k.text
	for {
		_, after, found := strings.Cut(rest, "{")
		if !found {
			return false
		}
		name, after, closed := strings.Cut(after, "}")
		if !closed {
			return false
		}
		if isCredential(name) {
			return true
		}
		rest = after
	}
}

// isCredential reports whether what a placeholder gives is a secret.
func isCredential(placeholder string) bool {
	if name, ok := strings.CutPrefix(placeholder, "http.request.header."); ok {
		return edge.CredentialHeader(name)
	}
	for _, prefix := range []string{"http.request.uri.query.", "http.auth.user."} {
		if name, ok := strings.CutPrefix(placeholder, prefix); ok {
			return edge.CredentialName(name)
		}
	}
	switch placeholder {
	case "http.request.uri", "http.request.uri.query", "http.request.orig_uri", "http.request.orig_uri.query":
		return true // whatever is in the query
	}
	return strings.HasPrefix(placeholder, "http.request.cookie.")
}

// expandShorthands replaces what a Caddyfile abbreviates, such as {client_ip}.
// A Caddyfile's parser has done that already; in JSON the abbreviation would be
// an unknown placeholder, hence empty, and all clients would share a quota.
func expandShorthands(text string) string {
	segment := caddyfile.Segment{{Text: text}}
	httpcaddyfile.NewShorthandReplacer().ApplyToSegment(&segment)
	return segment[0].Text
}
