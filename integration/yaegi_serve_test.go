package integration

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

var ok = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })

// ask sends a handler one request, with headers given as name, value.
func ask(h http.Handler, headers ...string) *httptest.ResponseRecorder {
	return askPath(h, "/a/b?q=1", headers...)
}

// askPath is ask for another path.
func askPath(h http.Handler, path string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "http://example.com"+path, nil)
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestInterpretedPanicOfNextGoesThrough(t *testing.T) {
	h := loadPlugin(t).mustHandler(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }), object{"dsn": "memory", "prefix": "a", "limit": "5 1m"})
	defer func() {
		if p := recover(); p != http.ErrAbortHandler { //nolint:errorlint // it is this very value
			t.Errorf("recovered %v", p)
		}
	}()
	ask(h)
	t.Error("the panic did not go through")
}
