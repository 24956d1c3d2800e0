package integration

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/traefik/yaegi/interp"
	"github.com/traefik/yaegi/stdlib"

	"github.com/pgratelimit/pg-ratelimit/internal/cluster"
)

// emptyPlugin is the least that a plugin can do.
const emptyPlugin = `package empty

import (
	"context"
	"fmt"
	"net/http"
)

type handler struct{ next http.Handler }

func New(ctx context.Context, next http.Handler) http.Handler { return &handler{next} }

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) { h.next.ServeHTTP(w, r) }
`

// BenchmarkInterpreted is what a request costs in the interpreter: with a plugin
// that does nothing, and with this one. cpu-ns/op is the processor time of this
// whole process, and with Postgres what to look at: there many requests wait
// at a time. With many keys, each of those who wait has one of his own, and so
// a batch many rows.
func BenchmarkInterpreted(b *testing.B) {
	b.Run("empty", func(b *testing.B) {
		i := interp.New(interp.Options{})
		if err := i.Use(stdlib.Symbols); err != nil {
			b.Fatal(err)
		}
		if _, err := i.Eval(emptyPlugin); err != nil {
			b.Fatal(err)
		}
		make, err := i.Eval("empty.New")
		if err != nil {
			b.Fatal(err)
		}
		h := make.Call([]reflect.Value{reflect.ValueOf(context.Background()), reflect.ValueOf(ok)})[0].Interface().(http.Handler)
		benchmarkHandler(b, h, 1, false)
	})
	p := loadPlugin(b)
	dsn := cluster.Open(b)
	for _, c := range []struct {
		name    string
		callers int
		config  object
	}{
		{"memory", 1, object{"dsn": "memory", "prefix": "m", "limit": "1000000000 1h"}},
		{"memory, denied", 1, object{"dsn": "memory", "prefix": "d", "limit": "1 1h"}},
		{"Postgres", 64, decideAlways(object{"dsn": dsn, "prefix": "m", "limit": "1000000000 1h"})},
		{"Postgres, many keys", 64, decideAlways(object{"dsn": dsn, "prefix": "k", "limit": "1000000000 1h"})},
		{"Postgres, denied", 64, decideAlways(object{"dsn": dsn, "prefix": "d", "limit": "1 1h"})},
		{"Postgres, three zones", 64, decideAlways(object{"dsn": dsn, "prefix": "z", "limit": "1000000000 1h", "zones": []object{
			{"prefix": "z1", "key": "all", "limit": "1000000000 1h"}, {"prefix": "z2", "key": "{path}", "limit": "1000000000 1h"},
		}})},
	} {
		b.Run(c.name, func(b *testing.B) {
			benchmarkHandler(b, p.mustHandler(b, ok, c.config), c.callers, strings.Contains(c.name, "many keys"))
		})
	}
}

func benchmarkHandler(b *testing.B, h http.Handler, callers int, manyKeys bool) {
	b.Helper()
	request := httptest.NewRequest(http.MethodGet, "/", nil)
	serve := func() { h.ServeHTTP(discard{http.Header{}}, request) }
	serve()
	var caller atomic.Int32
	b.ReportAllocs()
	before := processorTime(b)
	b.ResetTimer()
	if callers == 1 {
		for range b.N {
			serve()
		}
	} else {
		b.SetParallelism(callers)
		b.RunParallel(func(pb *testing.PB) {
			request := request
			if manyKeys {
				request = request.Clone(request.Context())
				request.RemoteAddr = fmt.Sprintf("192.0.2.%d:1234", caller.Add(1))
			}
			for pb.Next() {
				h.ServeHTTP(discard{http.Header{}}, request)
			}
		})
	}
	b.StopTimer()
	b.ReportMetric(float64(processorTime(b)-before)/float64(b.N), "cpu-ns/op")
}

// processorTime is how long this process has computed, in nanoseconds.
func processorTime(b *testing.B) int64 {
	b.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return used.Utime.Nano() + used.Stime.Nano()
}

// discard is a ResponseWriter that costs next to nothing.
type discard struct{ header http.Header }

func (d discard) Header() http.Header          { return d.header }
func (discard) Write(text []byte) (int, error) { return len(text), nil }
func (discard) WriteHeader(int)                {}
