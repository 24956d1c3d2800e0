package caddymodule

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/settings"
)

// Errors show a DSN only if it certainly has no password: a host, or a single placeholder. Of a URL, they
// show the scheme.
func TestErrorsRedactDSN(t *testing.T) {
	for dsn, want := range map[string]string{
		"garbage":                               "garbage",
		"localhost:5432":                        "localhost:5432",
		"{env.DB}":                              "{env.DB}",
		"postgres://u:hunter2@h/db":             "postgres://…",
		"postgres://u:hun/ter2@h/db":            "postgres://…",
		"mysql://hunter2":                       "mysql://…",
		"host=h password=hunter2":               "…",
		"password=hunter2":                      "…",
		"hunter2@h":                             "…",
		"{hunter2@h}":                           "…",
		"{env.DB}{hunter2}":                     "…",
		"postgres://{env.USER}:{env.PASS}@h/db": "postgres://…",
		"hunter2 ://x":                          "…",
		`"hunter2"`:                             "…",
	} {
		if got := showDSN(dsn); got != want {
			t.Errorf("showDSN(%q) = %q, want %q", dsn, got, want)
		}
	}
}

// Placeholders in a DSN are replaced in what the driver gets, but not in what errors show. A placeholder
// without a value is an error, which hides the password.
func TestPlaceholdersInDSN(t *testing.T) {
	t.Setenv("PG_RATELIMIT_TEST", "hunter2")
	for configured, want := range map[string]string{
		"memory":                  "memory",
		"postgres://u@h/db":       "postgres://u@h/db",
		"{env.PG_RATELIMIT_TEST}": "hunter2",
		"host=h password={env.PG_RATELIMIT_TEST}": "host=h password=hunter2",
		"postgres://u:{x}@h/db":                   "postgres://u:{x}@h/db",
	} {
		dsn, shown, err := ExpandDSN(configured)
		if err != nil || dsn != want || strings.Contains(shown, "hunter2") {
			t.Errorf("ExpandDSN(%q) = %q, %q, %v; want %q", configured, dsn, shown, err, want)
		}
	}
	_, _, err := ExpandDSN("postgres://u:hunter2@h/{env.PG_RATELIMIT_NOT_SET}")
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("an empty placeholder: error %v, want one without the password", err)
	}
}

// emptyPage responds to requests that pass.
var emptyPage = caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error { return nil })

// newHandler returns a handler that counts in memory and needs no running Caddy.
func newHandler(tb testing.TB, limits ...LimitSettings) *Handler {
	tb.Helper()
	h := &Handler{logger: zap.NewNop()}
	for _, l := range limits {
		h.Zones = append(h.Zones, &Zone{LimitSettings: l})
	}
	if err := h.compile(); err != nil {
		tb.Fatal(err)
	}
	var err error
	process := &host.Process{Log: func(host.Line) {}}
	inMemory := host.DataSource{Connection: settings.Connection{DSN: settings.MemoryDSN}}
	if h.databases, err = h.site.Open(process, &host.DataSources{Limits: inMemory}); err != nil {
		tb.Fatal(err)
	}
	context, cancel := caddy.NewContext(caddy.Context{Context: context.Background()})
	tb.Cleanup(cancel)
	m, err := newMetrics(context.GetMetricsRegistry())
	if err != nil {
		tb.Fatal(err)
	}
	h.metrics = m
	return h
}

// request returns a request as Caddy passes it to a handler.
func request() *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	w := httptest.NewRecorder()
	return caddyhttp.PrepareRequest(r, caddy.NewReplacer(), w, &caddyhttp.Server{})
}
