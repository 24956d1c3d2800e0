package policy

import (
	"regexp"
	"strings"

	"github.com/pgratelimit/pg-ratelimit/internal/core/option"
)

const wantHost = "a host such as example.com or *.example.com, without a port, and with international " +
	"names in their xn-- form"

// parseHost returns the normal form of a host, or of a text such as *.example.com, which stands for all
// subdomains of a domain.
func parseHost(text string) (string, error) {
	host := text
	star := ""
	if strings.HasPrefix(text, "*.") {
		host = text[1:]
		star = "*"
	}
	normal := NormalHost(host)
	name := strings.TrimRight(host, ".")
	if strings.Count(name, ":") > 1 && strings.HasPrefix(name, "[") == strings.HasSuffix(name, "]") {
		name = normal // an IPv6 address, in any of its forms
	}
	if !hostForm.MatchString(normal) || !strings.EqualFold(name, normal) ||
		star != "" && strings.HasPrefix(normal, "..") {
		return "", option.Invalid("hosts", text, wantHost)
	}
	return star + normal, nil
}

// hostForm matches printable ASCII without asterisks, slashes and at signs.
var hostForm = regexp.MustCompile(`^[!-)+-.0-?A-~]+$`)

// pathPattern matches a path in three parts. literal is the part before the first wildcard, without a
// trailing slash. In segments, "*" matches any one segment. If rest is set, any further segments match.
type pathPattern struct {
	literal  string
	segments []string
	rest     bool
}

const wantPath = "a path such as /login, /u/*/files or /api/*, where * is a whole segment, without empty " +
	"or dot segments, and not percent-encoded"

func parsePath(text string) (*pathPattern, error) {
	err := option.Invalid("paths", text, wantPath)
	p := &pathPattern{}
	if !strings.HasPrefix(text, "/") || strings.ContainsAny(text, "\\?") {
		return p, err
	}
	if text == "/" {
		return p, nil
	}
	segments := strings.Split(strings.TrimSuffix(text[1:], "/"), "/")
	if last := len(segments) - 1; segments[last] == "*" && !strings.HasSuffix(text, "/") {
		p.rest = true
		segments = segments[:last]
	}
	for _, segment := range segments {
		if segment == "" || segment == "." || segment == ".." || Unescape(segment) != segment ||
			segment != "*" && strings.IndexByte(segment, '*') >= 0 {
			return p, err
		}
		if segment != "*" && p.segments == nil {
			p.literal += "/" + segment
		} else {
			p.segments = append(p.segments, segment)
		}
	}
	return p, nil
}

func pathMatches(p *pathPattern, path string) bool {
	at := len(p.literal)
	if len(path) < at || path[:at] != p.literal || len(path) > at && path[at] != '/' {
		return false
	}
	// path[at:] is empty or begins with a slash. It is a single slash only for the root.
	for _, segment := range p.segments {
		if len(path) < at+2 {
			return false
		}
		end := at + 1
		for end < len(path) && path[end] != '/' {
			end++
		}
		if segment != "*" && path[at+1:end] != segment {
			return false
		}
		at = end
	}
	return p.rest || at == len(path) || path == "/" && at == 0
}
