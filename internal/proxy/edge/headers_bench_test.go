package edge_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

func BenchmarkHeaders(b *testing.B) {
	d := &ratelimit.Decision{Allowed: true, Limit: 1000, Remaining: 123, Reset: time.Unix(1_700_000_000, 0)}
	b.Run("one", func(b *testing.B) {
		h, a := http.Header{}, &edge.Outcome{Decision: d}
		b.ReportAllocs()
		for b.Loop() {
			edge.SetHeaders(h, a)
		}
	})
	b.Run("64 at once", func(b *testing.B) {
		responses := make([]edge.Response, 64)
		for i := range responses {
			responses[i] = edge.Response{Header: http.Header{}, Decision: d}
		}
		b.ReportAllocs()
		for b.Loop() {
			edge.SetAllHeaders(responses)
		}
	})
}
