package traefikplugin

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/conformance"
)

// After its response, a request of 500 kB does not stay in memory, even if its key is a substring of its long
// URL.
func TestRequestsAreNotKept(t *testing.T) {
	h := newMiddleware(t, t.Context(), newProcess(time.Millisecond), &passCounter{}, validConfig(Settings{
		"dsn": cluster.Open(t), "limit": "1000 1h", "key": "{query.user}", "timeout": "10s", "audit": "all"}))
	conformance.CheckHeapGrowth(t, 30<<20, h, func() {
		for i := range 200 {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet,
				fmt.Sprintf("/?user=u%d&%s", i, strings.Repeat("x", 500_000)), nil))
			if w.Header().Get("X-RateLimit-Limit") == "" {
				t.Fatalf("status %d without X-RateLimit-Limit, want a decision", w.Code)
			}
		}
	})
}
