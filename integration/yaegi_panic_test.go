package integration

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// TestInterpretedPanicFailsOneRequest: the requests of a batch are read in one loop. A
// request that makes the plugin panic is answered by onError, and the others are decided.
func TestInterpretedPanicFailsOneRequest(t *testing.T) {
	dsn := cluster.Open(t)
	byGo := compiledHandler(t, ok, object{"dsn": dsn, "prefix": "go", "key": "{path}", "limit": "1000 1h",
		"timeout": "30s", "onError": "deny"})
	p := loadPlugin(t)
	byYaegi := p.mustHandler(t, ok, object{"dsn": dsn, "prefix": "yaegi", "key": "{path}", "limit": "1000 1h",
		"timeout": "30s", "onError": "deny"})
	for name, h := range map[string]http.Handler{"compiled": byGo, "interpreted": byYaegi} {
		var group sync.WaitGroup
		for i := range 90 {
			group.Go(func() {
				r := httptest.NewRequest(http.MethodGet, "/a", nil)
				want := http.StatusOK
				if i%3 == 0 {
					r.URL = nil // no server makes such a request
					want = http.StatusServiceUnavailable
				}
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				decided := w.Header().Get("X-RateLimit-Limit") == "1000"
				if w.Code != want || decided != (want == http.StatusOK) {
					t.Errorf("%s, request %d: %d with %v, want %d", name, i, w.Code, w.Header(), want)
				}
			})
		}
		group.Wait()
	}
}

func TestInterpretedPanicOfNextGoesThrough(t *testing.T) {
	h := loadPlugin(t).mustHandler(t,
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }),
		object{"dsn": "memory", "prefix": "a", "limit": "5 1m"})
	defer func() {
		if p := recover(); p != http.ErrAbortHandler { //nolint:errorlint // it is this very value
			t.Errorf("recovered %v", p)
		}
	}()
	ask(h)
	t.Error("the panic did not go through")
}
