package settings

import (
	"regexp"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

const wantAlternatives = `one key, or alternatives separated by " | ". All but the last must consist of ` +
	"placeholders only: other text is never empty, so the next alternative would never apply"

var (
	barWord      = regexp.MustCompile(`(?:^|\s)\|+(?:\s|$)`)
	placeholders = regexp.MustCompile(`^(?:\{[^}]*\})+$`)
)

// readKey reads the alternatives of a key such as "{header.X-Api-Key} | {client_ip}". The first alternative
// that is not empty is the key of a request. For a key without alternatives, ConfiguredLimit.Alternatives
// stays nil.
func readKey(to *Settings, text string) error {
	if !barWord.MatchString(text) {
		return nil
	}
	parts := strings.Split(text, " | ")
	for i := range parts {
		one := strings.TrimSpace(parts[i])
		isLast := i == len(parts)-1
		if isLast && (one == "" || barWord.MatchString(one)) || !isLast && !placeholders.MatchString(one) {
			return &ratelimit.FieldError{Value: text, Want: wantAlternatives}
		}
		parts[i] = one
	}
	to.Limit.Alternatives = parts
	return nil
}
