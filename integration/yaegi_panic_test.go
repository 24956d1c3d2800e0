package integration

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// If a request makes the plugin panic, onError decides on it. The other requests of its batch, which one loop
// reads, get their decisions.
func TestInterpretedPanicFailsOneRequest(t *testing.T) {
	h := loadPlugin(t).mustHandler(t, emptyOK, decideAlways(object{"dsn": cluster.Open(t), "prefix": "yaegi",
		"key": "{path}", "limit": "1000 1h"}))
	var group sync.WaitGroup
	for i := range 90 {
		group.Go(func() {
			r := httptest.NewRequest(http.MethodGet, "/a", nil)
			want, wantLimit := http.StatusOK, "1000"
			if i%3 == 0 {
				r.URL = nil // no server makes such a request
				want, wantLimit = http.StatusServiceUnavailable, ""
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if got := w.Header().Get("X-RateLimit-Limit"); w.Code != want || got != wantLimit {
				t.Errorf("request %d: status %d, X-RateLimit-Limit %q, want %d, %q", i, w.Code, got, want,
					wantLimit)
			}
		})
	}
	group.Wait()
}
