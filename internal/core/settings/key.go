package settings

import (
	"strings"

	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

const wantAlternatives = `one text, or alternatives with " | " between them, each but the last of ` +
	"placeholders alone, because other text is never empty"

// readKey reads the alternatives of a key such as "{header.X-Api-Key} | {client_ip}": the first that is not
// empty is the key of a request. A key without alternatives has none.
func readKey(to *Settings, text string) error {
	words := strings.Fields(text)
	bars := 0
	for i, word := range words {
		if strings.Trim(word, "|") != "" {
			continue
		}
		if word != "|" || i == len(words)-1 {
			return wrongAlternatives(text)
		}
		bars++
	}
	if bars == 0 {
		return nil
	}
	all := strings.Split(text, " | ")
	for i := range all {
		all[i] = strings.TrimSpace(all[i])
		if all[i] == "" || i < bars && hasFixedText(all[i]) {
			return wrongAlternatives(text)
		}
	}
	if len(all) != bars+1 {
		return wrongAlternatives(text)
	}
	to.Limit.Alternatives = all
	return nil
}

func wrongAlternatives(text string) error {
	return &ratelimit.FieldError{Value: text, Want: wantAlternatives}
}

// hasFixedText reports whether text has anything but placeholders.
func hasFixedText(text string) bool {
	for text != "" {
		end := strings.IndexByte(text, '}')
		if text[0] != '{' || end < 0 {
			return true
		}
		text = text[end+1:]
	}
	return false
}
