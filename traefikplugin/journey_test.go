package traefikplugin

import (
	"net/http"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// Package internal/testkit/journey counts the functions that these requests run.
func TestJourneyOfLeasedRequest(t *testing.T) {
	if testing.CoverMode() != "count" {
		t.Skip("internal/testkit/journey runs it")
	}
	c := &Config{Other: Settings{"dsn": cluster.Open(t), "timeout": "30s", "onError": "deny",
		"prefix": "journey", "limit": "1000000 1h", "algorithm": "fixed_window", "lease": "5%"}}
	h := newMiddleware(t, t.Context(), shared, &passCounter{}, c)
	for range 2000 {
		if w := get(h); w.Code != http.StatusOK {
			t.Fatalf("status %d, want 200", w.Code)
		}
	}
}
