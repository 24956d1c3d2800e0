package traefikplugin

import (
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/reading"
)

const wantKey = "text with {client_ip}, {remote_ip}, {host}, {method}, {path}, {header.NAME}, " +
	"{cookie.NAME}, {query.NAME} or another " +
	"placeholder of the documentation, each in one pair of braces"

// parseText implements reading.ParseText.
func (a *addresses) parseText(field, text string) (*reading.Text, error) {
	t := &reading.Text{}
	t.AddText("")
	rest := text
	for rest != "" {
		i := strings.IndexAny(rest, "{}")
		if i < 0 {
			i = len(rest)
		}
		if i > 0 {
			t.AddText(rest[:i])
			rest = rest[i:]
			continue
		}
		end := strings.IndexByte(rest, '}')
		if end <= 0 || !t.Add(a.fullName(rest[1:end])) {
			return nil, option.Invalid(field, text, wantKey)
		}
		rest = rest[end+1:]
	}
	return t, nil
}

// fullName returns the name of a placeholder for one with the same value in more steps.
func (a *addresses) fullName(name string) string {
	if name == "remote_host" || name == "client_ip" && a.plain {
		return "remote_ip"
	}
	return name
}
