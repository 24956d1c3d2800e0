package caddymodule

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/plane/history"
	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/postgres"
)

// recordTo has a handler record its requests, without a database.
func recordTo(tb testing.TB, h *Handler, audit string) {
	tb.Helper()
	level, err := edge.ParseAudit(audit, history.Audit{})
	if err != nil {
		tb.Fatal(err)
	}
	w, err := edge.OpenHistory(struct{ postgres.DB }{}, edge.HistorySettings{}, edge.HistoryOptions{Node: "n"})
	if err != nil {
		tb.Fatal(err)
	}
	for _, z := range h.zones {
		z.audit = level
	}
	h.recorder = &recorder{writer: w, audit: level}
}

// BenchmarkServeHTTPWithHistory serves requests without a database, with and without a history.
func BenchmarkServeHTTPWithHistory(b *testing.B) {
	for name, limit := range map[string]string{"allowed": fmt.Sprint(int64(ratelimit.MaxEvents)), "refused": "1"} {
		for _, audit := range []string{"none", "off", "denied", "sample 1%", "all"} {
			b.Run(name+"/"+audit, func(b *testing.B) {
				h := newHandler(b, LimitSettings{Prefix: "a", Limit: limit + " 1h"})
				if audit != "none" {
					recordTo(b, h, audit)
				}
				r := request()
				w := header{http.Header{}}
				b.ReportAllocs()
				for b.Loop() {
					clear(w.of)
					if err := h.ServeHTTP(w, r, emptyPage); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// A request that is counted in the metrics, and is not in the audit log, needs no more memory than
// one without a history.
func TestTheMetricsOfTheHistoryNeedNoAllocations(t *testing.T) {
	if raced {
		t.Skip("the race detector allocates memory itself; make test runs this test without it")
	}
	least := map[string]float64{}
	for _, audit := range []string{"none", "denied"} {
		h := newHandler(t, LimitSettings{Prefix: "a", Limit: "1000000000 1h"})
		if audit != "none" {
			recordTo(t, h, audit)
		}
		r, w := request(), header{http.Header{}}
		least[audit] = 100
		for range 5 { // goroutines of other tests allocate, too
			least[audit] = min(least[audit], testing.AllocsPerRun(1000, func() {
				clear(w.of)
				if err := h.ServeHTTP(w, r, emptyPage); err != nil {
					t.Fatal(err)
				}
			}))
		}
	}
	if least["denied"] > least["none"] {
		t.Errorf("allocations a request: %v", least)
	}
}
