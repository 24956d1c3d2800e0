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

	"github.com/pgratelimit/pg-ratelimit/internal/core/settings"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/host"
)

func TestWhatErrorsShowOfADSN(t *testing.T) {
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
			t.Errorf("%s is shown as %s, want %s", dsn, got, want)
		}
	}
}

func TestPlaceholdersInADSN(t *testing.T) {
	t.Setenv("PG_RATELIMIT_TEST", "hunter2")
	for configured, want := range map[string]string{
		"memory":                  "memory",
		"postgres://u@h/db":       "postgres://u@h/db",
		"{env.PG_RATELIMIT_TEST}": "hunter2",
		"host=h password={env.PG_RATELIMIT_TEST}": "host=h password=hunter2",
		"postgres://u:{x}@h/db":                   "postgres://u:{x}@h/db",
	} {
		dsn, shown, err := expandDSN(configured)
		if err != nil || dsn != want || strings.Contains(shown, "hunter2") {
			t.Errorf("%q is %q, shown as %q, %v; want %q", configured, dsn, shown, err, want)
		}
	}
	if _, _, err := expandDSN("postgres://u:hunter2@h/{env.PG_RATELIMIT_NOT_SET}"); err == nil ||
		strings.Contains(err.Error(), "hunter2") {
		t.Errorf("an empty placeholder: %v", err)
	}
}

// emptyPage responds to requests that pass.
var emptyPage = caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error { return nil })

// newHandler returns a handler without a Caddy, which counts in memory.
func newHandler(tb testing.TB, rules ...LimitSettings) *Handler {
	tb.Helper()
	h := &Handler{logger: zap.NewNop()}
	for _, r := range rules {
		h.Zones = append(h.Zones, &Zone{LimitSettings: r})
	}
	if err := h.compile(); err != nil {
		tb.Fatal(err)
	}
	var err error
	alone := &host.Process{Log: func(host.Line) {}}
	inMemory := host.DataSource{Store: settings.Store{DSN: settings.MemoryDSN}}
	if h.handle, err = h.site.Open(alone, &host.DataSources{Limits: inMemory}); err != nil {
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

// header is a ResponseWriter that keeps only the headers.
type header struct{ of http.Header }

func (h header) Header() http.Header       { return h.of }
func (header) Write(b []byte) (int, error) { return len(b), nil }
func (header) WriteHeader(int)             {}

func TestARequestNeedsFewAllocations(t *testing.T) {
	if raced {
		t.Skip("the race detector allocates memory itself; make test runs this test without it")
	}
	h := newHandler(t, LimitSettings{Prefix: "a", Limit: "1000000000 1h"})
	r, w := request(), header{http.Header{}}
	least := 100.0
	for range 5 { // goroutines of other tests allocate, too
		least = min(least, testing.AllocsPerRun(1000, func() {
			clear(w.of)
			if err := h.ServeHTTP(w, r, emptyPage); err != nil {
				t.Fatal(err)
			}
		}))
	}
	if least > 7 {
		t.Errorf("%v allocations a request, want 7 at most", least)
	}
}
