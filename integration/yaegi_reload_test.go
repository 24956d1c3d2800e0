package integration

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"runtime"
	"testing"
)

// The size of the dynamic configuration that these tests load: each router has all middlewares.
const (
	reloadRouters     = 50
	reloadMiddlewares = 10
)

// load makes the middlewares of all routers as Traefik does at each change of its dynamic configuration: it ends the
// context of the ones before, decodes the configuration for each router, and makes a middleware.
func (p *plugin) load(t testing.TB, end context.CancelFunc, limit string) context.CancelFunc {
	t.Helper()
	if end != nil {
		end()
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	for range reloadRouters {
		for i := range reloadMiddlewares {
			p.named(t, ctx, fmt.Sprint("limit-", i, "@file"), map[string]any{"dsn": unreachable, "prefix": fmt.Sprint("api-", i), "limit": limit, "key": "{header.X-Api-Key}",
				"zones": []any{map[string]any{"prefix": fmt.Sprint("all-", i), "key": "all", "limit": "1000 1d", "match": map[string]any{"paths": "/login"}}}})
		}
	}
	return cancel
}

// unreachable is a DSN at which nothing answers.
const unreachable = "postgres://u@127.0.0.1:1/db?sslmode=disable"

// named makes a middleware with a name.
func (p *plugin) named(t testing.TB, ctx context.Context, name string, config map[string]any) {
	t.Helper()
	decoded := p.createConfig.Call(nil)[0]
	if err := decode(config, decoded.Interface()); err != nil {
		t.Fatal(err)
	}
	if err := p.new.Call([]reflect.Value{reflect.ValueOf(context.WithValue(ctx, new(int), name)), reflect.ValueOf(http.Handler(ok)), decoded, reflect.ValueOf(name)})[1].Interface(); err != nil {
		t.Fatal(err)
	}
}

// allocations is how many objects do allocates.
func allocations(do func()) int {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return int(after.Mallocs - before.Mallocs)
}

// What a configuration compiles to is made once for all routers that use it, and not again at a reload that did not
// change it.
func TestAReloadMakesAMiddlewareOnce(t *testing.T) {
	p := loadPlugin(t)
	var end context.CancelFunc
	end = p.load(t, end, "100 1m") // the interpreter completes what it runs at first
	first := allocations(func() { end = p.load(t, end, "200 1m") })
	again := allocations(func() { end = p.load(t, end, "200 1m") })
	one := allocations(func() {
		for range reloadRouters * reloadMiddlewares {
			_ = decode(map[string]any{"prefix": "api"}, p.createConfig.Call(nil)[0].Interface())
		}
	})
	t.Logf("allocations: %d of a new configuration, %d of one that did not change, %d of decoding", first, again, one)
	if first > 40*one || again > 20*one {
		t.Errorf("%d middlewares of a new configuration take %d allocations, and of one that did not change %d; decoding takes %d",
			reloadRouters*reloadMiddlewares, first, again, one)
	}
}

// The CPU of a reload. Run it with: go test -run '^$' -bench Reload -benchtime 5x .
func BenchmarkReload(b *testing.B) {
	for _, changed := range []bool{true, false} {
		b.Run(map[bool]string{true: "changed", false: "unchanged"}[changed], func(b *testing.B) {
			p := loadPlugin(b)
			end := p.load(b, nil, "100 1m")
			before := processorTime(b)
			for i := range b.N {
				limit := "100 1m"
				if changed {
					limit = fmt.Sprint(101+i, " 1m")
				}
				end = p.load(b, end, limit)
			}
			b.ReportMetric(float64(processorTime(b)-before)/1e6/float64(b.N), "cpu-ms/reload")
		})
	}
}

// The heap of queues that no request uses. Run it with: go test -run '^$' -bench HeapOfDSNs -benchtime 1x .
func BenchmarkHeapOfDSNs(b *testing.B) {
	p := loadPlugin(b)
	heap := func() float64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc) / 1e6
	}
	const dsns = 29
	before := heap()
	for i := range dsns {
		p.named(b, b.Context(), fmt.Sprint("limit-", i, "@file"), map[string]any{"dsn": fmt.Sprint(unreachable, "&application_name=a", i), "prefix": "api", "limit": "100 1m"})
	}
	b.ReportMetric(heap()-before, "MB/29-DSNs")
}
