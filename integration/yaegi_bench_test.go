package integration

import (
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

var interpretBeside = flag.String("beside", "",
	"the folder of another version, which BenchmarkInterpreted measures in turns with this one")

// turns is the number of times that BenchmarkInterpreted measures each version.
const turns = 20

// BenchmarkInterpreted reports the processor time of a request in the interpreted plugin, without that of
// the database: 64 requests wait at once. With the flag beside, the metric ratio is the median over turns of
// the time of this version to that of the other.
func BenchmarkInterpreted(b *testing.B) {
	sides := []*plugin{loadPlugin(b)}
	if *interpretBeside != "" {
		sides = append(sides, loadPluginOf(b, *interpretBeside))
	}
	for _, c := range []struct {
		name   string
		keys   int
		config object
	}{
		{"Postgres", 100, object{"limit": "1000000000 1h"}},
		{"Postgres, many keys", 10000, object{"limit": "1000000000 1h"}},
		{"Postgres, leased", 100, object{"limit": "1000000000 1h", "lease": "5%"}},
		{"Postgres, leased, 1,000 keys", 1000, object{"limit": "1000000000 1h", "lease": "5%"}},
		{"Postgres, leased, 10,000 keys", 10000, object{"limit": "1000000000 1h", "lease": "5%"}},
		{"Postgres, denied", 100, object{"limit": "1 1h"}},
		{"Postgres, local", 100, object{"limit": "1000000000 1h", "onError": "local"}},
		{"Postgres, audit denied", 100, object{"limit": "1000000000 1h", "audit": "denied"}},
		{"Postgres, denied, audit denied", 100, object{"limit": "1 1h", "audit": "denied"}},
	} {
		b.Run(c.name, func(b *testing.B) {
			var loads []*benchLoad
			for i, p := range sides {
				config := decideAlways(object{"dsn": cluster.Open(b), "prefix": fmt.Sprint("p", i),
					"key": "{header.X-Key}"})
				for name, value := range c.config {
					config[name] = value
				}
				l := &benchLoad{handler: p.mustHandler(b, served, config)}
				for k := range c.keys {
					l.keys = append(l.keys, []string{fmt.Sprint("key", k)})
				}
				loads = append(loads, l)
			}
			measureInTurns(b, loads)
		})
	}
}

// benchLoad sends requests to a handler.
type benchLoad struct {
	handler http.Handler
	keys    [][]string
	took    []float64 // the processor time of a request in each turn, in nanoseconds
}

// measureInTurns sends b.N requests to each handler, in turns, and reports what they took.
func measureInTurns(b *testing.B, loads []*benchLoad) {
	n := max(b.N/turns, 1)
	order := slices.Clone(loads)
	for _, l := range loads {
		l.send(n)
	}
	b.ReportAllocs()
	b.ResetTimer()
	for range turns {
		for _, l := range order {
			before := processorTime(b)
			l.send(n)
			l.took = append(l.took, float64(processorTime(b)-before)/float64(n))
		}
		slices.Reverse(order)
	}
	b.StopTimer()
	b.ReportMetric(median(loads[0].took), "cpu-ns/op")
	if len(loads) == 2 {
		var ratios []float64
		for i, took := range loads[0].took {
			ratios = append(ratios, took/loads[1].took[i])
		}
		b.ReportMetric(median(ratios), "ratio")
	}
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[len(sorted)/2]
}

// send sends n requests, 64 at once, each with the next of the keys.
func (l *benchLoad) send(n int) {
	var sent atomic.Int64
	var callers sync.WaitGroup
	for range 64 {
		callers.Go(func() {
			request := httptest.NewRequest(http.MethodGet, "/", nil)
			for i := int(sent.Add(1)); i <= n; i = int(sent.Add(1)) {
				request.Header["X-Key"] = l.keys[i%len(l.keys)]
				l.handler.ServeHTTP(discard{http.Header{}}, request)
			}
		})
	}
	callers.Wait()
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

// processorTime returns the processor time of this process, in nanoseconds.
func processorTime(b *testing.B) int64 {
	b.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return used.Utime.Nano() + used.Stime.Nano()
}
