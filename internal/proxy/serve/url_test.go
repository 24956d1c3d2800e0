package serve_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
)

// A client that writes one path in several ways has the same key each time.
func TestFormsOfOnePathHaveOneKey(t *testing.T) {
	for text, want := range map[string]string{
		"": "", "/": "/", "*": "*", "/a/b": "/a/b", "/a/b/": "/a/b/", "/.well-known/x": "/.well-known/x",
		"//a///b": "/a/b", "/a/./b": "/a/b", "/x/../a/b": "/a/b", "/a/b//": "/a/b/", "/a/b/.": "/a/b",
		"/a/b/c/..": "/a/b", "/a/b/./": "/a/b/", "/..": "/", "//": "/",
	} {
		if got := serve.NormalizePath(text); got != want {
			t.Errorf("NormalizePath(%q) = %q, want %q", text, got, want)
		}
		// Traefik normalizes paths by this function.
		u := url.URL{Path: text}
		if got := u.JoinPath().Path; text != "" && text != "*" && got != want {
			t.Errorf("Traefik normalizes %q to %q, want %q", text, got, want)
		}
	}
}

// A semicolon separates parameters as & does. An invalid escape stays, and hides no parameter.
func TestInvalidParameterHidesNoValidOne(t *testing.T) {
	for query, want := range map[string]string{
		"": "", "q=a": "a", "q=a&q=b": "a,b", "q=a;b": "a", "x=1;q=a%3Bb": "a;b", "q=a&x=%zz": "a",
		"q=a&q=a": "a", "q[]=a&q[x]=b": "a,b", "q%5B%5D=a&q=b": "a,b", "q=%zz+%41": "%zz A",
	} {
		if got := strings.Join(serve.QueryValues(&url.URL{RawQuery: query}, "q"), ","); got != want {
			t.Errorf("the value of q in ?%s is %q, want %q", query, got, want)
		}
	}
}

// Equal paths have one form, and the URL of the request stays as it was sent.
func TestEqualPathsHaveOneForm(t *testing.T) {
	for text, want := range map[string]string{
		"/a/b?q=x&y": "/a/b?q=x&y", "/a": "/a", "/?": "/?",
		"//a/./x/../b?q=x;y": "/a/b?q=x&y", "/a/%2e%2e/b": "/b", "/a//b%2Fc": "/a/b%2Fc", "/x/..%2Fb": "/b",
		"/%C3%A9//b": "/%C3%A9/b",
		"/a%2fb":     "/a%2Fb", "/%7euser%2f%41": "/~user%2FA",
	} {
		u, err := url.ParseRequestURI(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := serve.CleanURL(u).RequestURI(); got != want {
			t.Errorf("CleanURL(%q) = %q, want %q", text, got, want)
		}
		if got := u.RequestURI(); got != text {
			t.Errorf("CleanURL changed its argument %q to %q", text, got)
		}
		// Traefik passes a cleaned path to the plugin.
		if got := serve.CleanURL(u.JoinPath()).RequestURI(); got != want {
			t.Errorf("CleanURL of %q as Traefik passes it = %q, want %q", text, got, want)
		}
	}
}
