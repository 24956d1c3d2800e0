package caddymodule

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"

	"github.com/pgratelimit/pg-ratelimit/internal/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/edge"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
)

// app is one of a config that is being set up.
func app(migrate bool) *App { return &App{migrate: migrate, used: map[storeKey]*store{}} }

// take asks a store about a request.
func take(t *testing.T, s *store) error {
	t.Helper()
	limit := &ratelimit.Limit{Prefix: "p", Events: 1000, Window: time.Minute}
	return s.Take(context.Background(), 10*time.Second, []ratelimit.Hit{{Limit: limit, Key: "k", Cost: 1}}, make([]ratelimit.Decision, 1))
}

func mustStore(t *testing.T, a *App, dsn string) *store {
	t.Helper()
	s, err := a.store(dsn, 250*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

// Configs that follow each other share a store; it is closed once the last has
// let go, after a while, and its connections go with it.
func TestAStoreOutlivesItsConfig(t *testing.T) {
	dsn := cluster.Open(t)
	first := app(true)
	s := mustStore(t, first, dsn)
	if mustStore(t, first, dsn) != s {
		t.Error("two handlers of a config have two stores")
	}
	if err := take(t, s); err != nil {
		t.Fatal(err)
	}
	key := first.key(dsn)
	for range 300 {
		next := app(true)
		if mustStore(t, next, dsn) != s {
			t.Fatal("a reload has made another store")
		}
		first.release(0)
		first = next
	}
	eventually(t, "one config holds the store", func() bool { n, _ := stores.References(key); return n == 1 })
	if n := cluster.Connections(t, dsn); n < 1 || n > 4 {
		t.Errorf("%d connections, want 1, or a few where the database is slow", n)
	}

	const linger = time.Second
	released := time.Now()
	first.release(linger)
	first.release(linger) // as after a failed load; does nothing
	for time.Since(released) < linger/2 {
		if err := take(t, s); err != nil {
			t.Fatalf("a request that is still under way: %v", err)
		}
	}
	eventually(t, "no connection is left", func() bool { return cluster.Connections(t, dsn) == 0 })
	if waited := time.Since(released); waited < linger {
		t.Errorf("closed after %v, want %v", waited, linger)
	}
	if err := take(t, s); !errors.Is(err, ratelimit.ErrClosed) {
		t.Errorf("afterwards: %v", err)
	}
}

// Whatever shapes a store makes another one.
func TestStoresDiffer(t *testing.T) {
	half, zero, no := 0.5, 0.0, false
	seen := map[storeKey]string{}
	for name, a := range map[string]*App{
		"the defaults":           {migrate: true},
		"max_conns 3":            {migrate: true, MaxConns: 3},
		"auto_migrate off":       {},
		"cleanup_probability .5": {migrate: true, CleanupProbability: &half},
		"cleanup_probability 0":  {migrate: true, CleanupProbability: &zero},
		"in_memory_block off":    {migrate: true, InMemoryBlock: &no},
		"max_blocked_keys 5":     {migrate: true, MaxBlockedKeys: 5},
	} {
		key := a.key("postgres://localhost/db")
		if before, ok := seen[key]; ok {
			t.Errorf("%s and %s share a store", name, before)
		}
		seen[key] = name
		if a.key(memoryDSN) != (storeKey{dsn: memoryDSN}) {
			t.Errorf("with %s there is more than one memory", name)
		}
	}
	if (&App{MaxConns: 8}).key("x") != (&App{}).key("x") {
		t.Error("a default that is written out makes another store")
	}
}

// As many stores as processes would be start on an empty database.
func TestStoresStartAtOnce(t *testing.T) {
	dsn := cluster.Open(t)
	apps := make([]*App, 20)
	var wg sync.WaitGroup
	for i := range apps {
		// Of one key they would be one store.
		apps[i] = &App{migrate: true, used: map[storeKey]*store{}, MaxConns: i + 1}
		s := mustStore(t, apps[i], dsn)
		wg.Go(func() {
			if err := apps[i].Start(); err != nil {
				t.Error(err)
			}
			if err := take(t, s); err != nil {
				t.Error(err)
			}
			if s.failing.Load() {
				t.Error("an error was logged")
			}
		})
	}
	wg.Wait()
	for _, a := range apps {
		a.release(0)
	}
	eventually(t, "no connection is left", func() bool { return cluster.Connections(t, dsn) == 0 })
}

func TestShowDSN(t *testing.T) {
	for dsn, want := range map[string]string{
		"garbage":                               "garbage",
		"localhost:5432":                        "localhost:5432",
		"{env.DB}":                              "{env.DB}",
		"postgres://u:hunter2@h/db":             "postgres://…",
		"postgres://u:hun/ter2@h/db":            "postgres://…",
		"mysql://hunter2":                       "mysql://…",
		"host=h password=hunter2":               "…",
		"password=hunter2":                      "…",
		"hunter2@h":                             "…",
		"{hunter2@h}":                           "…",
		"{env.DB}{hunter2}":                     "…",
		"postgres://{env.USER}:{env.PASS}@h/db": "postgres://…",
		"hunter2 ://x":                          "…",
		`"hunter2"`:                             "…",
	} {
		if got := showDSN(dsn); got != want {
			t.Errorf("%s is shown as %s, want %s", dsn, got, want)
		}
	}
}

func TestResolveDSN(t *testing.T) {
	t.Setenv("DATABASE_URL", "postgres://hunter2@h/db")
	t.Setenv("PG_RATELIMIT_TEST", "hunter2")
	for configured, want := range map[string]string{
		"":                        "postgres://hunter2@h/db",
		"memory":                  "memory",
		"postgres://u@h/db":       "postgres://u@h/db",
		"{env.PG_RATELIMIT_TEST}": "hunter2",
		"host=h password={env.PG_RATELIMIT_TEST}": "host=h password=hunter2",
		"postgres://u:{x}@h/db":                   "postgres://u:{x}@h/db",
	} {
		dsn, shown, err := resolveDSN(configured)
		if err != nil || dsn != want || strings.Contains(shown, "hunter2") {
			t.Errorf("%q is %q, shown as %q, %v; want %q", configured, dsn, shown, err, want)
		}
	}
	if _, _, err := resolveDSN("postgres://u:hunter2@h/{env.PG_RATELIMIT_NOT_SET}"); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("an empty placeholder: %v", err)
	}
}

// silent answers requests that pass.
var silent = caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error { return nil })

// bare is a handler in no Caddy, counting in memory.
func bare(tb testing.TB, rules ...Rule) *Handler {
	tb.Helper()
	h := &Handler{logger: zap.NewNop(), store: &store{Store: ratelimit.NewMemory(0, nil)}}
	for _, r := range rules {
		h.Zones = append(h.Zones, &Zone{Rule: r})
	}
	if err := h.compile(); err != nil {
		tb.Fatal(err)
	}
	h.gate = edge.Gate{Store: h.store, Timeout: time.Second}
	context, cancel := caddy.NewContext(caddy.Context{Context: context.Background()})
	tb.Cleanup(cancel)
	m, err := newMetrics(context.GetMetricsRegistry())
	if err != nil {
		tb.Fatal(err)
	}
	for _, z := range h.zones {
		z.counters = m.counters(z.limit.Prefix)
	}
	return h
}

// request is as Caddy hands it to a handler.
func request() *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	w := httptest.NewRecorder()
	return caddyhttp.PrepareRequest(r, caddy.NewReplacer(), w, &caddyhttp.Server{})
}

// header is a response of which only the header matters.
type header struct{ of http.Header }

func (h header) Header() http.Header       { return h.of }
func (header) Write(b []byte) (int, error) { return len(b), nil }
func (header) WriteHeader(int)             {}

func BenchmarkServeHTTP(b *testing.B) {
	many := fmt.Sprint(int64(ratelimit.MaxEvents))
	for name, rules := range map[string][]Rule{
		"address":      {{Prefix: "a", Limit: many + " 1h"}},
		"header":       {{Prefix: "a", Limit: many + " 1h", Key: "{http.request.header.X-User}"}},
		"secret":       {{Prefix: "a", Limit: many + " 1h", Key: "{http.request.header.Authorization}"}},
		"three zones":  {{Prefix: "a", Limit: many + " 1h"}, {Prefix: "b", Limit: many + " 1h"}, {Prefix: "c", Limit: many + " 1h", Key: "all"}},
		"refused":      {{Prefix: "a", Limit: "1 1h"}},
		"cost by text": {{Prefix: "a", Limit: many + " 1h", Cost: "{http.request.header.X-Cost}"}},
	} {
		b.Run(name, func(b *testing.B) {
			h := bare(b, rules...)
			r := request()
			r.Header.Set("X-User", "ann")
			r.Header.Set("Authorization", "hunter2")
			r.Header.Set("X-Cost", "3")
			w := header{http.Header{}}
			b.ReportAllocs()
			for b.Loop() {
				clear(w.of)
				if err := h.ServeHTTP(w, r, silent); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// A decision is to cost next to nothing. Of what is allocated, two pieces are
// the answer's headers.
func TestAllocations(t *testing.T) {
	h := bare(t, Rule{Prefix: "a", Limit: "1000000000 1h"})
	r, w := request(), header{http.Header{}}
	n := testing.AllocsPerRun(1000, func() {
		clear(w.of)
		if err := h.ServeHTTP(w, r, silent); err != nil {
			t.Fatal(err)
		}
	})
	if n > 6 {
		t.Errorf("%v allocations a request, want 6 at most", n)
	}
}
