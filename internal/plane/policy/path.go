package policy

import (
	"encoding/hex"
	"net"
	"net/netip"
	"net/url"
	"path"
	"reflect"
	"regexp"
	"strings"
)

// NormalPath returns the form of a request's path that rules match, or "" for an ambiguous path, which names
// different resources on different servers. The caller should refuse such a request with AmbiguousPath.
// escaped is the path as it was sent (url.URL.EscapedPath). NormalPath decodes percent-encoding once, drops
// empty segments and a trailing slash, and resolves dot segments, encoded or not. The result begins with a
// slash.
//
// Some servers read an encoded slash or a backslash as a slash, and others as part of a segment. NormalPath
// replaces both by a backslash. A rule matches such a path if it matches one of the two readings, so a rule
// for /api/* matches /api%2Fx, and a rule for /u/*/files matches /u/a%2Fb/files. A rule that exempts must
// match both readings. If the path also has dot segments, the two kinds of server see different resources:
// "/a/b%2F..%2F..%2Fc" is /c, or a resource below /a. A client could then choose which rule applies, so the
// path is ambiguous.
//
// Some servers ignore path parameters: the rest of a segment from a semicolon on. A path with parameters and
// dot segments is ambiguous; "..;x" counts as a dot segment. In other paths, parameters stay in the result,
// and Evaluate refuses the request with AmbiguousPath if the verdict depends on the parameters.
//
// The result keeps the case of the path. See matchesPath for the rules that ignore it.
func NormalPath(escaped string) string {
	normal := encodedSlashes.Replace(escaped)
	if strings.IndexByte(normal, '%') >= 0 {
		normal = Unescape(normal)
	}
	if !strings.HasPrefix(normal, "/") {
		normal = "/" + normal
	}
	if strings.ContainsAny(normal, "\\;") && dotSegment.MatchString(normal) {
		return ""
	}
	return path.Clean(normal)
}

var encodedSlashes = strings.NewReplacer("%2F", "\\", "%2f", "\\")

// dotSegment matches a dot segment, with or without parameters, in a path that begins with a slash. A
// backslash separates segments.
var dotSegment = regexp.MustCompile(`[/\\]\.\.?(;[^/\\]*)?([/\\]|$)`)

// backslashAsSlash returns the reading of a normal path in which backslashes separate segments.
func backslashAsSlash(text string) string { return path.Clean(strings.ReplaceAll(text, "\\", "/")) }

// Unescape decodes percent-encoding. A percent sign without two hexadecimal digits stays.
func Unescape(text string) string {
	if plain, err := url.PathUnescape(text); err == nil {
		return plain
	}
	return encoded.ReplaceAllStringFunc(text, func(found string) string {
		decoded, _ := hex.DecodeString(found[1:]) // the pattern ensures two digits
		return string(decoded)
	})
}

var encoded = regexp.MustCompile("%[0-9A-Fa-f]{2}")

// NormalHost returns the form of a request's host that rules match: in lower case, without port, trailing
// dots, and the brackets of an IPv6 address.
func NormalHost(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimRight(strings.ToLower(strings.Trim(host, "[]")), ".")
	if address, err := netip.ParseAddr(host); err == nil {
		host = address.String()
	}
	return host
}

// isAmbiguous reports whether the parameters of a path change the verdict. It compares v with the verdict on
// the request without parameters: the refusal, the exemption and the enforced limits. Because it compares
// verdicts instead of matching rules, a path is not ambiguous if one rule decides both readings.
func isAmbiguous(set *ruleSet, f *Facts, state *senderState, at int64, v *Verdict) bool {
	for _, path := range withoutParameters(f.Path) {
		without := *f
		without.Path = path
		other := Verdict{User: v.User, Tier: v.Tier, KeyID: v.KeyID, withoutSender: v.withoutSender,
			above: v.above}
		selectRules(match(set, &without, &other), &without, state, at, &other)
		if other.Reason != v.Reason || other.Refusing != v.Refusing || other.Exempt != v.Exempt ||
			!reflect.DeepEqual(enforced(other.Terms), enforced(v.Terms)) {
			return true
		}
	}
	return false
}

// enforced returns the terms of rules that are enforced.
func enforced(terms []*Terms) []*Terms {
	var list []*Terms
	for _, t := range terms {
		if !t.Shadow {
			list = append(list, t)
		}
	}
	return list
}

// withoutParameters returns the readings of a normal path without its parameters, or nil if it has none.
// There are two readings if the path has an encoded slash, which may belong to a parameter or end the
// parameter.
func withoutParameters(text string) []string {
	if strings.IndexByte(text, ';') < 0 {
		return nil
	}
	readings := []string{path.Clean(parameters.ReplaceAllLiteralString(text, ""))}
	if strings.IndexByte(text, '\\') >= 0 {
		readings = append(readings, path.Clean(shortParameters.ReplaceAllLiteralString(text, "")))
	}
	return readings
}

var (
	parameters      = regexp.MustCompile(`;[^/]*`)
	shortParameters = regexp.MustCompile(`;[^/\\]*`)
)
