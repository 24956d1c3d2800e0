package serve_test

import (
	"encoding/base64"
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"
)

// reading is how a server reads a part of a request: the values that it may take.
type reading struct {
	name string
	read func(r *http.Request) []string
}

// lineReadings read the header X-Key.
var lineReadings = []reading{
	{"Go, Header.Get", func(r *http.Request) []string { return []string{r.Header.Get("X-Key")} }},
	// Node's http joins repeated lines with ", " (message.headers), and Express's req.get returns that text.
	// WSGI servers, and so Werkzeug, join them with ",", and PHP's getallheaders returns Apache's, which are
	// joined with ", ". A server that takes an element of the joined list takes the value of a line.
	{"joined by Node, WSGI or Apache", func(r *http.Request) []string { return r.Header["X-Key"] }},
}

// basicReadings read the credentials in Authorization, and return the header of a request with them alone.
var basicReadings = []reading{
	{"Go, BasicAuth", func(r *http.Request) []string {
		user, password, ok := r.BasicAuth()
		return basicOf(user+":"+password, ok)
	}},
	// Node discards repeated lines of Authorization. Package basic-auth has this pattern, and decodes by
	// Buffer.from, which accepts the alphabet of URLs and needs no padding.
	{"Express, basic-auth", func(r *http.Request) []string {
		pattern := regexp.MustCompile(`^ *(?:[Bb][Aa][Ss][Ii][Cc]) +([A-Za-z0-9._~+/-]+=*) *$`)
		match := pattern.FindStringSubmatch(r.Header.Get("Authorization"))
		if match == nil {
			return nil
		}
		return basicOf(lenientBase64(match[1]), true)
	}},
	// Buffer.from stops at the first padding.
	{"Node, Buffer.from", func(r *http.Request) []string {
		rest, ok := cutBasic(r)
		rest, _, _ = strings.Cut(rest, "=")
		return basicOf(lenientBase64(rest), ok)
	}},
	// PHP compares "Basic " without case, and base64_decode discards what is no digit, also after padding.
	{"PHP", func(r *http.Request) []string {
		rest, ok := cutBasic(r)
		return basicOf(lenientBase64(strings.NewReplacer("-", "", "_", "").Replace(rest)), ok)
	}},
	// Werkzeug's Authorization.from_header partitions at the first space, lowers the scheme, and decodes by
	// base64.b64decode, which discards what is no digit, and stops at the padding that completes four digits.
	{"Werkzeug", func(r *http.Request) []string {
		rest, ok := cutBasic(r)
		rest = strings.NewReplacer("-", "", "_", "").Replace(rest)
		complete := regexp.MustCompile(`^(?:(?:[^=]*?[A-Za-z0-9+/]){4})*?` +
			`(?:[^A-Za-z0-9+/=]*[A-Za-z0-9+/]){2}(?:[^A-Za-z0-9+/=]*[A-Za-z0-9+/])?=`)
		if padded := complete.FindString(rest); padded != "" {
			rest = padded
		}
		return basicOf(lenientBase64(rest), ok)
	}},
}

// cutBasic returns the text after the scheme Basic in Authorization.
func cutBasic(r *http.Request) (rest string, ok bool) {
	scheme, rest, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	return rest, strings.EqualFold(scheme, "basic")
}

// basicOf returns the header for credentials if they have a colon, which servers require.
func basicOf(credentials string, ok bool) []string {
	if !ok || !strings.Contains(credentials, ":") {
		return nil
	}
	return []string{"Basic " + base64.StdEncoding.EncodeToString([]byte(credentials))}
}

// lenientBase64 decodes the digits in a text and skips all other characters.
func lenientBase64(text string) string {
	text = strings.NewReplacer("-", "+", "_", "/").Replace(text)
	text = regexp.MustCompile(`[^A-Za-z0-9+/]`).ReplaceAllString(text, "")
	if len(text)%4 == 1 {
		text = text[:len(text)-1]
	}
	plain, _ := base64.RawStdEncoding.DecodeString(text)
	return string(plain)
}

// cookieReadings read the cookie sid, and return the text of a cookie with the value alone.
var cookieReadings = []reading{
	{"Go, Cookie", func(r *http.Request) []string {
		c, err := r.Cookie("sid")
		if err != nil {
			return nil
		}
		return []string{c.Value}
	}},
	// cookie's parse takes the first, trims, cuts quotes, and keeps what decodeURIComponent refuses.
	{"Express, cookie-parser", func(r *http.Request) []string {
		return firstCookie(r, func(value string) string {
			if len(value) > 1 && value[0] == '"' {
				value = value[1 : len(value)-1]
			}
			plain, err := url.PathUnescape(value)
			if err != nil || !utf8.ValidString(plain) {
				return value
			}
			var text string // cookie-parser reads j: and a JSON text
			if strings.HasPrefix(plain, "j:") && json.Unmarshal([]byte(plain[2:]), &text) == nil {
				plain = text
			}
			return url.PathEscape(plain)
		})
	}},
	// Werkzeug's parse_cookie cuts quotes, and in them decodes a backslash and three octal digits, and drops
	// other backslashes. Its MultiDict returns the first.
	{"Werkzeug", func(r *http.Request) []string {
		return firstCookie(r, func(value string) string {
			if len(value) < 2 || value[0] != '"' || value[len(value)-1] != '"' {
				return value
			}
			return regexp.MustCompile(`\\[0-3][0-7]{2}|\\.`).ReplaceAllStringFunc(value[1:len(value)-1],
				func(escape string) string {
					if n, err := strconv.ParseUint(escape[1:], 8, 8); err == nil && len(escape) == 4 {
						return string([]byte{byte(n)})
					}
					return escape[1:]
				})
		})
	}},
	// PHP's $_COOKIE keeps the first, and decodes by rawurldecode, which keeps invalid escapes.
	{"PHP, $_COOKIE", func(r *http.Request) []string {
		return firstCookie(r, func(value string) string { return value })
	}},
}

// firstCookie returns the first cookie sid, and splits only at semicolons.
func firstCookie(r *http.Request, decode func(string) string) []string {
	for _, one := range strings.Split(strings.Join(r.Header["Cookie"], "; "), ";") {
		if name, value, _ := strings.Cut(strings.TrimSpace(one), "="); name == "sid" {
			return []string{decode(strings.TrimSpace(value))}
		}
	}
	return nil
}

// queryReadings read the parameter q.
var queryReadings = []reading{
	{"Go, Query().Get", func(r *http.Request) []string { return []string{r.URL.Query().Get("q")} }},
	// qs makes a list of repeated parameters and of q[], and reads [q] as q.
	{"Express, qs", func(r *http.Request) []string {
		values := r.URL.Query()
		return slices.Concat(values["q"], values["q[]"], values["[q]"])
	}},
	{"Werkzeug, args.get", func(r *http.Request) []string { return []string{r.URL.Query().Get("q")} }},
	// PHP's $_GET drops spaces before a name, and what is after NUL. It has the last, or a list for q[].
	{"PHP, $_GET", func(r *http.Request) []string {
		values := url.Values{}
		for name, more := range r.URL.Query() {
			name, _, _ = strings.Cut(strings.TrimLeft(name, " "), "\x00")
			values[name] = append(values[name], more...)
		}
		if list := values["q[]"]; list != nil {
			return list
		}
		if list := values["q"]; list != nil {
			return list[len(list)-1:]
		}
		return nil
	}},
}

// checkReadings sends random parts of a request, and checks that each value which a server reads has paid: a
// request with this value alone would be charged to one of the same rows.
func checkReadings(t *testing.T, key string, parts []string, request func(parts []string) *http.Request,
	readings []reading) {
	t.Helper()
	site := newKeySite(t, "", key)
	random := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		var drawn []string
		for range 1 + random.IntN(4) {
			drawn = append(drawn, parts[random.IntN(len(parts))])
		}
		r := request(drawn)
		paid := strings.Split(keysOf(site, r, ""), ", ")
		for _, one := range readings {
			for _, value := range one.read(r) {
				alone := strings.Split(keysOf(site, request([]string{value}), ""), ", ")
				has := func(key string) bool { return slices.Contains(paid, key) }
				if value != "" && paid[0] != "request:several" && !slices.ContainsFunc(alone, has) {
					t.Fatalf("%s of %q: the value %q has not paid: got %q, want %q", one.name, drawn, value,
						paid, alone)
				}
			}
		}
	}
}

// Whichever value of several a server reads has paid.
func TestValueThatServerReadsHasPaid(t *testing.T) {
	header := func(name, before string) func(parts []string) *http.Request {
		return func(parts []string) *http.Request {
			r := requestWith()
			for _, part := range parts {
				r.Header.Add(name, before+part)
			}
			return r
		}
	}
	checkReadings(t, "{header.X-Key}", []string{"a", "b", "Bearer a", "c d", "2001:db8::1", "2001:DB8::2",
		" a", "a\t", ""}, header("X-Key", ""), lineReadings)
	checkReadings(t, "{header.Authorization}", []string{"Basic YW5uOnB3", "basic  YW5uOnB3", "BASIC YW5uOnA",
		"Basic YW5uOnA=", "Basic YW5uOnB=", "basic YW5u.OnB3", "Basic YTpi_w==", "Basic YTpi/w", "Bearer K",
		"Basic YTpiYw==AAAA", "Basic YTp-i", "Basic YTpi=AAA"},
		header("Authorization", ""), basicReadings)
	checkReadings(t, "{cookie.sid}", []string{"S", "%53", `"S"`, "s", "17", "S; Sid=2", "1; sid=3", "100%",
		"%zz", "%FF", `a\b`, `"\123"`, `"\S"`, `j:"S"`, `j%3A%22S%22`,
		""}, header("Cookie", "sid="), cookieReadings)
	checkReadings(t, "{query.q}", []string{"a", "%61", "b", "c+d", "c%20d", "a&x=1", "1&q[]=2", "1&Q=3",
		"1&[q]=4", "1&+q=5", "1&q%00x=6", ""},
		func(parts []string) *http.Request {
			r := requestWith()
			r.URL.RawQuery = "q=" + strings.Join(parts, "&q=")
			if len(parts) == 1 && !strings.Contains(parts[0], "&") && !strings.Contains(parts[0], "%") {
				r.URL.RawQuery = "q=" + strings.ReplaceAll(parts[0], " ", "+")
			}
			return r
		}, queryReadings)
}
