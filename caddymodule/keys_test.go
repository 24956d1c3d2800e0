package caddymodule

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// A key may have all placeholders of Caddy's requests, and placeholders that other modules set.
func TestPlaceholdersOfCaddyAreAccepted(t *testing.T) {
	for _, text := range []string{
		"", "everybody", `a \{literal} brace`, "{client_ip}", "{remote_ip}", "{remote_host}", "{host}",
		"{labels.0}", "{hostport}", "{method}", "{path}", "{path.1}",
		"{uri}", "{query}", "{query.x}", "{header.X}", "{cookie.x}", "{scheme}", "{uuid}", "{orig_uri}",
		"{vars.tenant}", "{http.auth.user.id}", "{tls_client_subject}",
		"{http.request.local.port}", "{http.request.remote.host/24,64}", "{http.regexp.x.1}", "{my.map}",
		"{env.NAME}", "{system.hostname}", "{http.request.body}",
	} {
		if _, err := parseText("key", text); err != nil {
			t.Errorf("%s: error %v, want nil", text, err)
		}
	}
}

// If the key of a limit is empty, the log warns once, because all requests with an empty key share a quota.
func TestEmptyKeyIsLoggedOnce(t *testing.T) {
	h := newHandler(t,
		LimitSettings{Prefix: "a", Limit: "9 1h", Key: "{http.auth.user.id}"},
		LimitSettings{Prefix: "b", Limit: "9 1h", Key: "{header.X-User}"},
		LimitSettings{Prefix: "c", Limit: "9 1h", Key: "all"})
	core, logs := observer.New(zap.WarnLevel)
	h.logger = zap.New(core)
	for _, user := range []string{"ann", "", ""} {
		r := request()
		r.Header.Set("X-User", user)
		serveOnce(t, h, r)
	}
	var prefixes []string
	const warning = "the key of a request is empty: all such requests share one quota"
	for _, entry := range logs.FilterMessage(warning).All() {
		prefixes = append(prefixes, entry.ContextMap()["prefix"].(string))
	}
	if got := strings.Join(prefixes, " "); got != "a b" {
		t.Errorf("warnings for %s, want one for a and one for b", got)
	}
}

// serveOnce passes a request to a handler, which may refuse it.
func serveOnce(t *testing.T, h *Handler, r *http.Request) {
	t.Helper()
	var refusal caddyhttp.HandlerError
	if err := h.ServeHTTP(httptest.NewRecorder(), r, emptyPage); err != nil && !errors.As(err, &refusal) {
		t.Fatal(err)
	}
}
