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

	"github.com/pgratelimit/pg-ratelimit/internal/core/schema"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
)

// emptyPlugin is a plugin that does nothing.
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

// BenchmarkInterpreted measures a request in the interpreter: with a plugin that does
// nothing, and with this one. cpu-ns/op is the processor time of the whole process. With
// Postgres many requests wait at the same time, so compare cpu-ns/op there. With many keys,
// each of the waiting requests has its own key.
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
		h := make.Call([]reflect.Value{reflect.ValueOf(context.Background()), reflect.ValueOf(served)})[0].Interface().(http.Handler)
		benchmarkHandler(b, h, 1, false, "")
	})
	p := loadPlugin(b)
	dsn := cluster.Open(b)
	key := governedKey(b, dsn)
	for _, c := range []struct {
		name    string
		callers int
		config  object
	}{
		{"memory", 1, object{"dsn": "memory", "prefix": "m", "limit": "1000000000 1h"}},
		{"memory, denied", 1, object{"dsn": "memory", "prefix": "d", "limit": "1 1h"}},
		{"Postgres", 64, decideAlways(object{"dsn": dsn, "prefix": "m", "limit": "1000000000 1h"})},
		{"Postgres, many keys", 64, decideAlways(object{"dsn": dsn, "prefix": "k", "limit": "1000000000 1h"})},
		// A proxy that remembers rows has a store of its own here.
		{"Postgres, local", 64, object{"dsn": dsn, "prefix": "m", "limit": "1000000000 1h", "timeout": "30s", "onError": "local", "nodeName": "local"}},
		{"Postgres, many keys, local", 64, object{"dsn": dsn, "prefix": "k", "limit": "1000000000 1h", "timeout": "30s", "onError": "local", "nodeName": "local"}},
		{"Postgres, leased", 1, decideAlways(object{"dsn": dsn, "prefix": "l", "limit": "1000000000 1h", "lease": "5%"})},
		{"Postgres, leased, many keys", 64, decideAlways(object{"dsn": dsn, "prefix": "lk", "limit": "1000000000 1h", "lease": "5%"})},
		{"Postgres, denied", 64, decideAlways(object{"dsn": dsn, "prefix": "d", "limit": "1 1h"})},
		{"Postgres, three zones", 64, decideAlways(object{"dsn": dsn, "prefix": "z", "limit": "1000000000 1h", "zones": []object{
			{"prefix": "z1", "key": "all", "limit": "1000000000 1h"}, {"prefix": "z2", "key": "{path}", "limit": "1000000000 1h"},
		}})},
		{"Postgres, policy", 64, decideAlways(object{"dsn": dsn, "policy": object{"apiKey": "{header.Authorization}"}})},
		// Those with a history come last: it is still written when the next ones are measured.
		{"Postgres, audit denied", 64, decideAlways(object{"dsn": dsn, "prefix": "hd", "limit": "1000000000 1h", "audit": "denied"})},
		{"Postgres, denied, audit denied", 64, decideAlways(object{"dsn": dsn, "prefix": "hr", "limit": "1 1h", "audit": "denied"})},
		{"Postgres, leased, audit denied", 64, decideAlways(object{"dsn": dsn, "prefix": "hl", "limit": "1000000000 1h", "lease": "5%", "audit": "denied"})},
		{"Postgres, policy, audit denied", 64, decideAlways(object{"dsn": dsn, "policy": object{"apiKey": "{header.Authorization}"}, "audit": "denied"})},
		{"Postgres, audit all", 64, decideAlways(object{"dsn": dsn, "prefix": "ha", "limit": "1000000000 1h", "audit": "all"})},
	} {
		b.Run(c.name, func(b *testing.B) {
			benchmarkHandler(b, p.mustHandler(b, served, c.config), c.callers, strings.Contains(c.name, "many keys"), key)
		})
	}
}

// governedKey makes a policy with one limit, and returns an API key.
func governedKey(b *testing.B, dsn string) (key string) {
	b.Helper()
	key, insert := newKey(b, 1, "alice")
	cluster.Execute(b, dsn, schema.File+people+insert+"SELECT rate_limit_rule('plan', tiers => '{free}', per_hour => 1000000000);")
	return key
}

// served responds as a reverse proxy does.
var served = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
	w.Header()["Content-Length"] = []string{"2"}
	w.WriteHeader(http.StatusOK)
	_, _ = w.Write([]byte("ok"))
})

func benchmarkHandler(b *testing.B, h http.Handler, callers int, manyKeys bool, key string) {
	b.Helper()
	request := httptest.NewRequest(http.MethodGet, "/", nil)
	request.Header.Set("Authorization", key)
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

// processorTime is the processor time of this process, in nanoseconds.
func processorTime(b *testing.B) int64 {
	b.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return used.Utime.Nano() + used.Stime.Nano()
}

// discard is a ResponseWriter that drops what is written.
type discard struct{ header http.Header }

func (d discard) Header() http.Header          { return d.header }
func (discard) Write(text []byte) (int, error) { return len(text), nil }
func (discard) WriteHeader(int)                {}
