package serve_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/serve"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
)

// matchPost returns a Match of POST for a path.
func matchPost(path string) func(*http.Request) (bool, error) {
	return func(r *http.Request) (bool, error) {
		matches := r.Method == http.MethodPost && r.URL.Path == path
		return matches, nil
	}
}

const (
	socket = "Connection: Upgrade|Upgrade: websocket"
	h2c    = "HTTP2-Settings: A|Upgrade: h2c|Connection: "
)

// An upgrade would hide its tokens, so it is refused where a POST meets a limit of tokens. An offer of h2c,
// and another method in a header in any spelling, are removed there. A limit of requests for POST has no say.
func TestNoRequestPassesBesideLimitsOfTokensForPost(t *testing.T) {
	const refused = "426 Upgrade HTTP/1.1 No upgrade possible object"
	for _, c := range []struct{ line, headers, mode, want string }{
		{"GET /v1", socket, "", refused}, {"POST /v1", socket, "", refused}, {"PUT /v1", socket, "", refused},
		{"OPTIONS /v1", socket + "|Origin: a|Access-Control-Request-Method: GET", "", refused},
		{"GET /v1", "Upgrade: tcp", "", refused}, {"GET /v1", "Upgrade: websocket, h2c", "", refused},
		{"GET /v1", "Upgrade: h2c|Upgrade: websocket", "", refused},
		{"GET /v1", socket + "|X-HTTP-Method-Override: POST", "", refused},
		{"CONNECT /v1", "", "", "400   No upgrade possible object"},
		{"CONNECT /v1", "Upgrade: h2c", "", "400   No upgrade possible object"},
		{"GET /v2", socket, "", "0 Connection=Upgrade Upgrade=websocket"},
		{"CONNECT /v2", "", "", "0"}, {"GET /v1", socket, "shadow", "0 Connection=Upgrade Upgrade=websocket"},
		{"GET /v1", socket, "off", "0 Connection=Upgrade Upgrade=websocket"},
		{"GET /v1", h2c + "Upgrade, HTTP2-Settings", "", "0"},
		{"POST /v1", h2c + "HTTP2-Settings,keep-alive , upgrade|Connection: TE", "",
			"0 Connection=keep-alive, TE"},
		{"GET /v1", "Upgrade: , H2C|Connection: Upgrade", "", "0"},
		{"GET /v2", h2c + "Upgrade", "", "0 Connection=Upgrade Http2-Settings=A Upgrade=h2c"},
		{"GET /v1", "X-HTTP-Method-Override: POST", "", "0"}, {"PUT /v1", "X-HTTP-Method: POST", "", "0"},
		{"QUERY /v1", "X-Method-Override: post|Connection: Upgrade", "", "0"},
		{"GET /v2", "X-HTTP-Method-Override: POST", "", "0 X-Http-Method-Override=POST"},
		{"GET /v1", "X_HTTP_METHOD_OVERRIDE: POST", "", "0"}, {"PUT /v1", "X-Http_method: POST", "", "0"},
		{"GET /v2", "X_Method_Override: POST", "", "0 X_method_override=POST"},
		{"GET /v2", socket, "off", "0 Connection=Upgrade Upgrade=websocket"},
		{"POST /v2", socket, "", "401   Unauthorized"},
		{"POST /v1", "X-HTTP-Method-Override: GET", "", "0 X-Http-Method-Override=GET"},
		{"POST /v1", h2c + "Upgrade|X-HTTP-Method-Override: GET", "", "0 X-Http-Method-Override=GET"},
	} {
		s := kindSite(t, nil, settings.Values{"prefix": "tokens", "key": "k", "limit": "1000000 1h",
			"algorithm": "fixed_window", "unit": "tokens", "mode": c.mode},
			settings.Values{"prefix": "requests", "key": "k", "without_key": "refuse", "limit": "100 1m"})
		s.Zones[1].Key = &serve.Text{}
		s.Zones[1].Key.Add("header.X-Api-Key")
		s.Zones[0].Match, s.Zones[1].Match = matchPost("/v1"), matchPost("/v2")
		method, path, _ := strings.Cut(c.line, " ")
		w := httptest.NewRecorder()
		q := &serve.Request{HTTP: httptest.NewRequestWithContext(t.Context(), method, "/", nil), Writer: w}
		q.HTTP.URL.Path = path
		for header := range strings.SplitSeq(c.headers, "|") {
			name, value, _ := strings.Cut(header, ": ")
			q.HTTP.Header.Add(name, value)
		}
		delete(q.HTTP.Header, "")
		if err := serve.Handle(s, q); err != nil {
			t.Fatal(err)
		}
		check.Equal(t, "the method", q.HTTP.Method, method)
		q.HTTP.Header.Del("Accept-Encoding") // of a request whose response is read
		got := fmt.Sprint(q.Outcome.Status)
		if h := w.Header(); q.Outcome.Status != 0 {
			got += fmt.Sprint(" ", h.Get("Connection"), " ", h.Get("Upgrade"), " ", q.Outcome.Text())
			if strings.HasPrefix(q.Body, `{"type":"error"`) {
				got += " object"
			}
		} else if len(q.HTTP.Header) > 0 {
			got = strings.NewReplacer("map[", " ", "]", "", ":[", "=", "] ", " ").Replace(
				got + fmt.Sprint(q.HTTP.Header))
		}
		check.Equal(t, c.line+" "+c.headers+" "+c.mode, got, c.want)
	}
}
