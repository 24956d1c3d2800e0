package traefikplugin

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
)

// TestManySetsOfLimits, which are asked for at once.
func TestManySetsOfLimits(t *testing.T) {
	c := valid()
	c.Other["prefix"], c.Other["limit"] = "", ""
	for i := range 8 {
		c.Zones = append(c.Zones, Zone{Other: Settings{"prefix": fmt.Sprint("z", i), "limit": "1000 1m"}, Match: &edge.Match{Headers: []string{fmt.Sprint("X-", i)}}})
	}
	h, err := New(t.Context(), http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), c, "test")
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	for set := range 1 << 8 {
		group.Go(func() {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			want := ""
			for i := range 8 {
				if set>>i&1 == 1 {
					r.Header.Set(fmt.Sprint("X-", i), "1")
					want = "1000"
				}
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			if got := w.Header().Get("X-RateLimit-Limit"); got != want {
				t.Errorf("set %d: limit %q, want %q", set, got, want)
			}
		})
	}
	group.Wait()
}
