package settings

import (
	"regexp"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

const wantAlternatives = `one text, or alternatives with " | " between them, each but the last of ` +
	"placeholders alone, because other text is never empty"

var (
	barWord      = regexp.MustCompile(`(?:^|\s)\|+(?:\s|$)`)
	placeholders = regexp.MustCompile(`^(?:\{[^}]*\})+$`)
)

// readKey reads the alternatives of a key such as "{header.X-Api-Key} | {client_ip}": the first that is not
// empty is the key of a request. A key without alternatives has none.
func readKey(to *Settings, text string) error {
	if !barWord.MatchString(text) {
		return nil
	}
	all := strings.Split(text, " | ")
	for i := range all {
		one := strings.TrimSpace(all[i])
		isLast := i == len(all)-1
		if isLast && (one == "" || barWord.MatchString(one)) || !isLast && !placeholders.MatchString(one) {
			return &ratelimit.FieldError{Value: text, Want: wantAlternatives}
		}
		all[i] = one
	}
	to.Limit.Alternatives = all
	return nil
}
