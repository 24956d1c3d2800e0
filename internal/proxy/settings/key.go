package settings

import (
	"regexp"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
)

const wantAlternatives = `one key, or alternatives separated by " | ". All but the last must consist of ` +
	"placeholders only: other text is never empty, so the next alternative would never apply"

var (
	separator    = regexp.MustCompile(`(?:^|\s)\|+(?:\s|$)`)
	placeholders = regexp.MustCompile(`^(?:\{[^}]*\})+$`)
)

// readKey reads the alternatives of a key such as "{header.X-Api-Key} | {client_ip}". For a key without
// alternatives, ConfiguredLimit.Alternatives stays nil.
func readKey(dst *Settings, text string) error {
	parts, err := parseAlternatives(text)
	if len(parts) > 1 {
		dst.Limit.Alternatives = parts
	}
	return err
}

// parseAlternatives returns the alternatives in a text, or the text alone.
func parseAlternatives(text string) ([]string, error) {
	if !separator.MatchString(text) {
		return []string{text}, nil
	}
	parts := strings.Split(text, " | ")
	for i := range parts {
		alternative := strings.TrimSpace(parts[i])
		isLast := i == len(parts)-1
		if isLast && (alternative == "" || separator.MatchString(alternative)) ||
			!isLast && !placeholders.MatchString(alternative) {
			return nil, option.Invalid("", text, wantAlternatives)
		}
		parts[i] = alternative
	}
	return parts, nil
}
