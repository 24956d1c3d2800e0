package integration

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// TestHeadersStayAfterAnInformationalResponse has an upstream send 103 before its response. A
// reverse proxy then clears the headers of the response.
func TestHeadersStayAfterAnInformationalResponse(t *testing.T) {
	t.Parallel()
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h.Set("Link", "</style.css>; rel=preload")
		for _, name := range []string{"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Overage"} {
			h.Set(name, "7")
		}
		w.WriteHeader(http.StatusEarlyHints)
		h.Del("X-RateLimit-Overage")
		fmt.Fprint(w, "ok")
	}))
	t.Cleanup(backend.Close)
	dsn := policyDatabase(t, people+`SELECT rate_limit_rule('over', algorithm => 'fixed_window', per_hour => 1, on_exceed => 'overage');`)
	// Overage is of the third request. A Traefik with the headers auto or both loses those of its first response.
	want := map[string]string{"auto": "[1] [0] [2]", "ours": "[1] [0] [2]", "tighter": "[1] [0] [2]", "both": "[1 7] [0 7] [2]"}
	var routes []route
	var handlers strings.Builder
	for headers := range want {
		routes = append(routes, route{"/" + headers, backend.URL, decideAlways(object{
			"dsn": dsn, "headers": headers, "prefix": headers, "key": "all", "limit": "100 1h", "policy": object{"user": "{header.X-User}"},
		})})
		fmt.Fprintf(&handlers, "\thandle /%s {\n\t\tpg_ratelimit %s {\n\t\t\ttimeout 30s\n\t\t\ton_error deny\n\t\t\theaders %s\n\t\t\tkey all\n\t\t\tlimit 100 1h\n\t\t\tpolicy {\n\t\t\t\tuser {header.X-User}\n\t\t\t}\n\t\t}\n\t\treverse_proxy %s\n\t}\n",
			headers, headers, headers, backend.URL)
	}
	tr := startTraefik(t, routes)
	address := harness.FreeAddress(t)
	c := launchConfig(t, buildCaddy(t), address, fmt.Sprintf("{\n\tadmin off\n\tauto_https off\n\tpg_ratelimit {\n\t\tdsn %q\n\t}\n}\nhttp://:%s {\n\tbind 127.0.0.1\n%s}\n", dsn, address[strings.LastIndex(address, ":")+1:], handlers.String()))
	c.AwaitAddress(t, address)
	for name, url := range map[string]string{"Traefik": tr.url, "Caddy": c.url} {
		for headers, want := range want {
			var a harness.Answer
			for range 3 {
				a = harness.Ask(t, harness.Get(url+"/"+headers, "X-User", name+headers))
			}
			if got := fmt.Sprint(a.Header["X-Ratelimit-Limit"], a.Header["X-Ratelimit-Remaining"], a.Header["X-Ratelimit-Overage"]); a.Status != http.StatusOK || got != want {
				t.Errorf("%s, headers %s: %d %s, want %s", name, headers, a.Status, got, want)
			}
		}
	}
}
