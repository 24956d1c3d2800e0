package caddymodule

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/policy"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
)

// clientIP is the long form of the Caddyfile's {client_ip}.
const clientIP = "{http.vars." + caddyhttp.ClientIPVarKey + "}"

// key is what a limit counts together.
type key struct {
	template
	ipv4   int // how many bits of an address count
	ipv6   int
	secret bool

	alternatives []key // nil without; else template is for the configuration alone
}

// newKey reads text. "" is the client's address. Errors are *ratelimit.FieldError.
func newKey(configured string, read *edge.ConfiguredLimit) (key, error) {
	t, err := parseTemplate("key", cmp.Or(configured, clientIP))
	k := key{template: t, ipv4: read.IPv4, ipv6: read.IPv6}
	for _, text := range read.Alternatives {
		one := key{ipv4: k.ipv4, ipv6: k.ipv6}
		if one.template, err = parseTemplate("key", text); err != nil {
			return k, err
		}
		k.alternatives = append(k.alternatives, one)
	}
	return k, err
}

// markSecret makes the key a secret if it is one. Of alternatives, each may be one.
func (k *key) markSecret(isSecret func(*key) bool) {
	k.secret = k.secret || isSecret(k)
	for i := range k.alternatives {
		k.alternatives[i].markSecret(isSecret)
	}
}

// choose returns the key of a request for a key with alternatives.
func (k *key) choose(r *http.Request, repl *caddy.Replacer) string {
	for i := range k.alternatives {
		if text := k.alternatives[i].of(r, repl); text != "" {
			return policy.AlternativeKey(i+1, text, k.alternatives[i].secret)
		}
	}
	return ""
}

// of returns the key of a request. A client's address and a single placeholder are looked up
// directly, because a lookup is faster than replacing text.
func (k *key) of(r *http.Request, repl *caddy.Replacer) string {
	if k.fixed {
		return k.text
	}
	if k.text == clientIP {
		if address, ok := caddyhttp.GetVar(r.Context(), caddyhttp.ClientIPVarKey).(string); ok {
			return edge.Network(address, k.ipv4, k.ipv6)
		}
	}
	if k.single != "" {
		value, _ := repl.GetString(k.single)
		return k.value(r, k.single, value)
	}
	// ReplaceFunc returns only errors of the function, and the function returns none.
	text, _ := repl.ReplaceFunc(k.text, func(name string, value any) (any, error) {
		return k.value(r, name, caddy.ToString(value)), nil
	})
	return text
}

// The beginnings of the placeholders of a URI, and of those of its query parameters.
const (
	uriPrefix   = "http.request.uri"
	queryPrefix = uriPrefix + ".query."
)

// value is the text for a placeholder. It is the same as that of the Traefik plugin, so
// that both proxies make the same key.
func (k *key) value(r *http.Request, placeholder, text string) string {
	switch {
	case placeholder == "http.request.host":
		return edge.Host(text)
	case strings.HasPrefix(placeholder, "http.request.host"): // with the port, or a label
		return strings.ToLower(text)
	case strings.HasPrefix(placeholder, uriPrefix):
		if clean := edge.CleanURL(r.URL); clean != r.URL {
			text = valueFor(r, clean, placeholder)
		}
	}
	return edge.Network(text, k.ipv4, k.ipv6)
}

// valueFor is the text for a placeholder if the request had another URL.
func valueFor(r *http.Request, u *url.URL, placeholder string) string {
	other := r.WithContext(r.Context())
	other.URL = u
	repl := caddy.NewReplacer()
	caddyhttp.PrepareRequest(other, repl, nil, &caddyhttp.Server{})
	text, _ := repl.GetString(placeholder)
	return text
}

// hasCredential reports whether a placeholder of the key gives a secret.
func (k *key) hasCredential() bool {
	names, _ := placeholdersIn(k.text)
	return slices.ContainsFunc(names, isCredential)
}

// isCredential reports whether a placeholder gives a secret.
func isCredential(placeholder string) bool {
	if name, ok := strings.CutPrefix(placeholder, "http.request.header."); ok {
		return edge.CredentialHeader(name)
	}
	for _, prefix := range []string{queryPrefix, "http.auth.user."} {
		if name, ok := strings.CutPrefix(placeholder, prefix); ok {
			return edge.CredentialName(name)
		}
	}
	switch placeholder {
	case "http.request.uri", "http.request.uri.query", "http.request.orig_uri", "http.request.orig_uri.query":
		return true // the query may have a secret
	}
	return strings.HasPrefix(placeholder, "http.request.cookie.")
}
