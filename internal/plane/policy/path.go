package policy

import (
	"encoding/hex"
	"errors"
	"net"
	"net/netip"
	"net/url"
	"path"
	"regexp"
	"strings"
)

// ErrAmbiguousPath is returned by NormalPath for a path that names different resources on different servers.
// Refuse such a request with status 400.
var ErrAmbiguousPath = errors.New("the path has dot segments beside a parameter, an encoded slash or a " +
	"backslash")

// NormalPath returns the path of a request as rules match it. escaped is the path as it was sent
// (url.URL.EscapedPath). Percent-encoding is decoded once. Empty segments and a slash at the end are dropped,
// and dot segments, encoded or not, are resolved. The path begins with a slash.
//
// Some servers read an encoded slash and a backslash as a slash, and others as part of a segment. NormalPath
// writes both as a backslash. A rule matches such a path if it matches one of the two readings, so rules for
// /api/* and for /u/*/files match /api%2Fx and /u/a%2Fb/files. A rule that exempts must match both readings.
// If the path has dot segments as well, the two kinds of server see different resources: for
// "/a/b%2F..%2F..%2Fc", /c or a resource below /a. A client could then choose which rule applies, so
// NormalPath returns ErrAmbiguousPath.
//
// Some servers ignore path parameters: the rest of a segment from a semicolon on. NormalPath returns
// ErrAmbiguousPath for a path with parameters and dot segments; "..;x" counts as a dot segment. Otherwise
// parameters stay in the result, and Evaluate refuses the request with AmbiguousPath if its verdict depends
// on them.
//
// Upper and lower case differ.
func NormalPath(escaped string) (string, error) {
	text := encodedSlashes.Replace(escaped)
	if strings.IndexByte(text, '%') >= 0 {
		text = unescape(text)
	}
	if !strings.HasPrefix(text, "/") {
		text = "/" + text
	}
	if strings.ContainsAny(text, "\\;") && dotSegment.MatchString(text) {
		return "", ErrAmbiguousPath
	}
	return path.Clean(text), nil
}

var encodedSlashes = strings.NewReplacer("%2F", "\\", "%2f", "\\")

// dotSegment matches a dot segment, with or without parameters, in a path that begins with a slash. A
// backslash separates segments.
var dotSegment = regexp.MustCompile(`[/\\]\.\.?(;[^/\\]*)?([/\\]|$)`)

// backslashAsSlash returns the reading of a normal path in which a backslash separates segments.
func backslashAsSlash(text string) string { return path.Clean(strings.ReplaceAll(text, "\\", "/")) }

// unescape decodes percent-encoding. A percent sign without two hexadecimal digits stays. Only text that is
// not the path of a request can have one.
func unescape(text string) string {
	if plain, err := url.PathUnescape(text); err == nil {
		return plain
	}
	return encoded.ReplaceAllStringFunc(text, func(found string) string {
		decoded, _ := hex.DecodeString(found[1:]) // two digits
		return string(decoded)
	})
}

var encoded = regexp.MustCompile("%[0-9A-Fa-f]{2}")

// NormalHost returns the host of a request as rules match it: in lower case, without the port, without dots
// at the end, and an IPv6 address without brackets.
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

// isAmbiguous reports whether the parameters of a path change the verdict: whether the request without them
// would get another refusal, another exemption, or other enforced limits. It compares verdicts instead of
// matching rules, so a rule that decides both readings is not ambiguous.
func isAmbiguous(set *ruleSet, f *Facts, sender *senderState, at int64, o *Verdict) bool {
	for _, path := range withoutParameters(f.Path) {
		without := *f
		without.Path = path
		other := Verdict{User: o.User, Tier: o.Tier, KeyID: o.KeyID, senderUnknown: o.senderUnknown}
		apply(match(set, &without, &other), &without, sender, at, &other)
		if other.Reason != o.Reason || other.Mark != o.Mark || other.Exempt != o.Exempt ||
			!sameLimits(other.Marks, o.Marks) {
			return true
		}
	}
	return false
}

// sameLimits reports whether two lists have the same marks. It ignores marks of shadow rules, which come
// last.
func sameLimits(a, b []*Mark) bool {
	for i := 0; ; i++ {
		ended := i == len(a) || a[i].Shadow
		if ended != (i == len(b) || b[i].Shadow) || !ended && a[i] != b[i] {
			return false
		}
		if ended {
			return true
		}
	}
}

// withoutParameters returns the readings of a normal path without its parameters, or nil if it has none.
// There are two readings if an encoded slash may either belong to a parameter or end it.
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
