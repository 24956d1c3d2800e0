package integration

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// BenchmarkInterpreted reports the processor time that a request takes in the interpreted plugin, without the
// processor time of the database. Up to 64 requests wait concurrently. Comments of packages engine, history
// and respond, and docs/traefik.md, have its results.
func BenchmarkInterpreted(b *testing.B) {
	const wide, usedUp = "1000000000 1h", "1 1h"
	for _, c := range []struct {
		name   string
		keys   int64
		config object
	}{
		{name: "Postgres", keys: 100, config: object{"limit": wide}},
		{name: "Postgres, leased", keys: 100, config: object{"limit": wide, "lease": "5%"}},
		{name: "Postgres, leased, 10,000 keys", keys: 10_000, config: object{"limit": wide, "lease": "5%"}},
		{name: "Postgres, denied", keys: 100, config: object{"limit": usedUp}},
		{name: "Postgres, audit denied", keys: 100, config: object{"limit": wide, "audit": "denied"}},
		{name: "Postgres, denied, audit denied", keys: 100,
			config: object{"limit": usedUp, "audit": "denied"}},
	} {
		b.Run(c.name, func(b *testing.B) {
			c.config["dsn"], c.config["prefix"], c.config["key"] = cluster.Open(b), "p", "{header.X-Key}"
			h := loadPlugin(b).mustHandler(b, served, decideAlways(c.config))
			var sent atomic.Int64
			b.SetParallelism(64 / runtime.GOMAXPROCS(0))
			b.ReportAllocs()
			before := processorTime(b)
			b.RunParallel(func(pb *testing.PB) {
				request := httptest.NewRequest(http.MethodGet, "/", nil)
				for pb.Next() {
					request.Header.Set("X-Key", fmt.Sprint("key", sent.Add(1)%c.keys))
					h.ServeHTTP(discard{http.Header{}}, request)
				}
			})
			b.ReportMetric(float64(processorTime(b)-before)/float64(b.N), "cpu-ns/op")
		})
	}
}

// served responds as a reverse proxy does.
var served = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
	w.Header()["Content-Length"] = []string{"2"}
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write([]byte("ok"))
})

// discard is a ResponseWriter that drops what is written.
type discard struct{ header http.Header }

func (d discard) Header() http.Header          { return d.header }
func (discard) Write(text []byte) (int, error) { return len(text), nil }
func (discard) WriteHeader(int)                {}

// processorTime returns the processor time that this process has used, in nanoseconds.
func processorTime(b *testing.B) int64 {
	b.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return used.Utime.Nano() + used.Stime.Nano()
}
