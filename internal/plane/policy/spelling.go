package policy

import (
	"encoding/base64"
	"net/http"
	"sort"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
)

// HeaderValues returns the different values of a request header, each in one form. Names are equal without
// case, and with underscores as hyphens: another middleware may have written a name that is not canonical,
// and CGI makes no difference. name is canonical.
func HeaderValues(h http.Header, name string) []string {
	var others []string
	for other := range h {
		if len(other) == len(name) && other != name && isSpelling(other, name) {
			others = append(others, other)
		}
	}
	sort.Strings(others)
	lines := h[name]
	for _, other := range others {
		lines = append(lines[:len(lines):len(lines)], h[other]...)
	}
	var values []string
	for _, line := range lines {
		line = strings.Trim(line, " \t") // HTTP/2 keeps spaces around a value
		switch {
		case HasScheme(name):
			values = append(values, credentials(line)...)
		case strings.ContainsAny(line, " \t") && option.CredentialHeader(name) && Bearer(line) != "":
			values = append(values, Bearer(line))
		default:
			values = append(values, line)
		}
	}
	if len(values) > 1 {
		values = Distinct(values)
	}
	return values
}

// OtherSpelling reports whether headers have a name in another spelling than the canonical name, see
// HeaderValues.
func OtherSpelling(h http.Header, name string) bool {
	n := len(name)
	for other := range h {
		if len(other) == n && other != name && isSpelling(other, name) {
			return true
		}
	}
	return false
}

// isSpelling reports whether other is a spelling of name.
func isSpelling(other, name string) bool {
	return strings.EqualFold(strings.ReplaceAll(other, "_", "-"), strings.ReplaceAll(name, "_", "-"))
}

// HasScheme reports whether the value of a header begins with an authentication scheme. name is canonical.
func HasScheme(name string) bool { return name == "Authorization" || name == "Proxy-Authorization" }

// credentials returns the forms of a value with an authentication scheme: the scheme in lower case, and one
// space after it. The base64 text of Basic is decoded as leniently as servers do, and encoded again. If
// servers decode it differently, it has several forms: Node stops at the first padding, Python at a complete
// one, and Python and PHP ignore the digits of URLs.
func credentials(value string) []string {
	value = strings.TrimSpace(value)
	end := strings.IndexAny(value, " \t")
	if end < 0 {
		return []string{value}
	}
	scheme := strings.ToLower(value[:end])
	rest := strings.TrimLeft(value[end:], " \t")
	if scheme != "basic" {
		return []string{scheme + " " + rest}
	}
	node, _, _ := strings.Cut(rest, "=")
	plain := strings.NewReplacer("-", "", "_", "").Replace(rest)
	var forms []string
	for _, text := range []string{rest, node, plain, untilPadded(plain)} {
		digits := strings.Map(basicDigit, text)
		if len(digits)%4 == 1 { // the last digit has less than a byte
			digits = digits[:len(digits)-1]
		}
		decoded, _ := base64.RawStdEncoding.DecodeString(digits)
		forms = append(forms, "basic "+base64.StdEncoding.EncodeToString(decoded))
	}
	return Distinct(forms)
}

// untilPadded returns the start of a base64 text up to the padding that completes four digits.
func untilPadded(text string) string {
	digits, pads := 0, 0
	for i := 0; i < len(text); i++ { // in Yaegi, a range over a string counts characters
		switch {
		case basicDigit(rune(text[i])) >= 0:
			digits++
			pads = 0
		case text[i] == '=' && digits%4 >= 2:
			if pads++; digits%4+pads >= 4 {
				return text[:i]
			}
		}
	}
	return text
}

// basicDigit returns a digit of base64, and -1 for what servers ignore in it.
func basicDigit(r rune) rune {
	switch {
	case r == '-':
		return '+'
	case r == '_':
		return '/'
	case r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '+' || r == '/':
		return r
	}
	return -1
}
