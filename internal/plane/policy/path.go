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

// ErrAmbiguousPath is for a path that names one resource or another, depending on the
// server that reads it: see NormalPath. Refuse such a request with status 400.
var ErrAmbiguousPath = errors.New("the path has dot segments beside a parameter, an encoded slash or a " +
	"backslash")

// NormalPath returns the path of a request as rules match it. escaped is the path as it was sent
// (url.URL.EscapedPath). Percent-encoding is decoded once. Empty segments and a slash at the end are dropped,
// and dot segments, encoded or not, are resolved. The path begins with a slash.
//
// Some servers take an encoded slash and a backslash for a slash, and others for a part of a
// segment. Both are a backslash in the result. A rule matches such a path if it matches one of
// the two readings, so rules for /api/* and for /u/*/files match /api%2Fx and /u/a%2Fb/files; a
// rule that exempts must match both. Of a path that has dot segments as well, the two kinds of
// server see different resources ("/a/b%2F..%2F..%2Fc" is /c, or is below /a), and a client
// could choose which rule applies; NormalPath then returns ErrAmbiguousPath.
//
// Some servers ignore path parameters: in each segment, all from a semicolon on. Beside them, too,
// dot segments ("..;x" is one) lead to ErrAmbiguousPath. Otherwise parameters stay in the result, and
// Evaluate refuses the request with AmbiguousPath if its verdict depends on them.
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

// dotSegment matches a dot segment, perhaps with parameters, in a path that begins with a slash. A backslash
// divides segments here.
var dotSegment = regexp.MustCompile(`[/\\]\.\.?(;[^/\\]*)?([/\\]|$)`)

// slashed returns the reading of a path of NormalPath in which a backslash divides segments.
func slashed(text string) string { return path.Clean(strings.ReplaceAll(text, "\\", "/")) }

// unescape decodes percent-encoding. A percent sign without two hexadecimal digits stays; the path of a
// request has none, and is not for the interpreter.
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

// isAmbiguous reports whether the parameters of a path change the verdict. The request then has, without the
// parameters, another refusal, an exemption, or another limit that is enforced. Verdicts are compared, and
// not the rules that match: a rule that gives the verdict in both readings still gives it.
func isAmbiguous(set *ruleSet, f *Facts, sender *amounts, at int64, o *Verdict) bool {
	for _, path := range withoutParameters(f.Path) {
		without := *f
		without.Path = path
		other := Verdict{User: o.User, Tier: o.Tier, KeyID: o.KeyID, impersonal: o.impersonal}
		apply(match(set, &without, &other), &without, sender, at, &other)
		if other.Reason != o.Reason || other.Mark != o.Mark || other.Exempt != o.Exempt ||
			!sameLimits(other.Marks, o.Marks) {
			return true
		}
	}
	return false
}

// sameLimits reports whether two lists have the same marks, but for those of shadow rules, which come last.
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

// withoutParameters returns the readings of a path of NormalPath in which the parameters are ignored, or none
// if it has no parameters. An encoded slash may be a part of a parameter, or end it.
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
