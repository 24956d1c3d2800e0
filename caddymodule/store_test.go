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

	"github.com/pgratelimit/pg-ratelimit/internal/proxy/edge"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/await"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/ratelimit"
	"github.com/pgratelimit/pg-ratelimit/ratelimit/memory"
)

// newApp returns the app of a config that is being set up.
func newApp() *App { return new(App) }

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

// Configs that follow each other share a store. It is closed some time after the last
// config, and so are its connections.
func TestAReloadKeepsTheConnections(t *testing.T) {
	dsn := cluster.Open(t)
	first := newApp()
	s := mustStore(t, first, dsn)
	if mustStore(t, first, dsn) != s {
		t.Error("two handlers of a config have two stores")
	}
	if err := take(t, s); err != nil {
		t.Fatal(err)
	}
	key := first.used[0].settings
	for range 300 {
		next := newApp()
		if mustStore(t, next, dsn) != s {
			t.Fatal("a reload has made another store")
		}
		first.release(0)
		first = next
	}
	await.Within(t, 10*time.Second, "one config uses the store", func() bool { n, _ := inUse.References(key); return n == 1 })
	if n := cluster.Connections(t, dsn); n < 1 || n > 4 {
		t.Errorf("%d connections, want 1, or a few where the database is slow", n)
	}

	const delay = time.Second
	released := time.Now()
	first.release(delay)
	first.release(delay) // as after a failed load; does nothing
	for time.Since(released) < delay/2 {
		if err := take(t, s); err != nil {
			t.Fatalf("a request in flight: %v", err)
		}
	}
	await.Within(t, 10*time.Second, "no connection is left", func() bool { return cluster.Connections(t, dsn) == 0 })
	if waited := time.Since(released); waited < delay {
		t.Errorf("closed after %v, want %v", waited, delay)
	}
	if err := take(t, s); !errors.Is(err, ratelimit.ErrClosed) {
		t.Errorf("afterwards: %v", err)
	}
}

func pointer(n int) *int { return &n }

func TestOtherSettingsMakeAnotherStore(t *testing.T) {
	half, zero, no := 0.5, 0.0, false
	var inMemory *store
	seen := map[*store]string{}
	for name, a := range map[string]*App{
		"the defaults":           {},
		"max_conns 3":            {MaxConns: pointer(3)},
		"auto_migrate off":       {AutoMigrate: &no},
		"cleanup_probability .5": {CleanupProbability: &half},
		"cleanup_probability 0":  {CleanupProbability: &zero},
		"in_memory_block off":    {InMemoryBlock: &no},
		"max_blocked_keys 5":     {MaxBlockedKeys: pointer(5)},
		"max_leases 5":           {MaxLeases: pointer(5)},
	} {
		defer a.release(0)
		s := mustStore(t, a, "postgres://localhost/db")
		if before, ok := seen[s]; ok {
			t.Errorf("%s and %s share a store", name, before)
		}
		seen[s] = name
		if s := mustStore(t, a, "memory"); inMemory == nil {
			inMemory = s
		} else if s != inMemory {
			t.Errorf("with %s there is another store in memory", name)
		}
	}
}

// TestStoresStartAtOnce on an empty database, as the stores of several processes do.
func TestStoresStartAtOnce(t *testing.T) {
	dsn := cluster.Open(t)
	apps := make([]*App, 20)
	var wg sync.WaitGroup
	for i := range apps {
		// With equal settings they would share a store.
		apps[i] = &App{MaxConns: pointer(i + 1)}
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
	await.Within(t, 10*time.Second, "no connection is left", func() bool { return cluster.Connections(t, dsn) == 0 })
}

func TestWhatErrorsShowOfADSN(t *testing.T) {
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

func TestPasswordsInAConfiguredDSNAreSeen(t *testing.T) {
	for dsn, want := range map[string]bool{
		"postgres://u:hunter2@h/db": true, "postgres://{env.USER}:hunter2@h/db": true, "host=h password=hunter2": true,
		"postgres://u:{env.PASS}@h/db": false, "host=h password={env.PASS}": false, "{file./run/secrets/dsn}": false, "memory": false, "": false,
	} {
		if got := holdsPassword(dsn); got != want {
			t.Errorf("%s: %v, want %v", dsn, got, want)
		}
	}
}

func TestPlaceholdersInADSN(t *testing.T) {
	t.Setenv("PG_RATELIMIT_TEST", "hunter2")
	for configured, want := range map[string]string{
		"memory":                  "memory",
		"postgres://u@h/db":       "postgres://u@h/db",
		"{env.PG_RATELIMIT_TEST}": "hunter2",
		"host=h password={env.PG_RATELIMIT_TEST}": "host=h password=hunter2",
		"postgres://u:{x}@h/db":                   "postgres://u:{x}@h/db",
	} {
		dsn, shown, err := expandDSN(configured)
		if err != nil || dsn != want || strings.Contains(shown, "hunter2") {
			t.Errorf("%q is %q, shown as %q, %v; want %q", configured, dsn, shown, err, want)
		}
	}
	if _, _, err := expandDSN("postgres://u:hunter2@h/{env.PG_RATELIMIT_NOT_SET}"); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("an empty placeholder: %v", err)
	}
}

// emptyPage responds to requests that pass.
var emptyPage = caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error { return nil })

// newHandler returns a handler without a Caddy, which counts in memory.
func newHandler(tb testing.TB, rules ...LimitSettings) *Handler {
	tb.Helper()
	inMemory, err := memory.New(memory.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	h := &Handler{logger: zap.NewNop(), store: &store{Store: inMemory}}
	for _, r := range rules {
		h.Zones = append(h.Zones, &Zone{LimitSettings: r})
	}
	if err := h.compile(); err != nil {
		tb.Fatal(err)
	}
	h.decider = edge.Decider{Store: h.store, Timeout: time.Second}
	context, cancel := caddy.NewContext(caddy.Context{Context: context.Background()})
	tb.Cleanup(cancel)
	m, err := newMetrics(context.GetMetricsRegistry())
	if err != nil {
		tb.Fatal(err)
	}
	h.duration = m.duration
	for _, z := range h.zones {
		z.counters = m.counters(z, h.store)
	}
	return h
}

// request returns a request as Caddy passes it to a handler.
func request() *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	w := httptest.NewRecorder()
	return caddyhttp.PrepareRequest(r, caddy.NewReplacer(), w, &caddyhttp.Server{})
}

// header is a ResponseWriter that keeps only the headers.
type header struct{ of http.Header }

func (h header) Header() http.Header       { return h.of }
func (header) Write(b []byte) (int, error) { return len(b), nil }
func (header) WriteHeader(int)             {}

func BenchmarkServeHTTP(b *testing.B) {
	many := fmt.Sprint(int64(ratelimit.MaxEvents))
	for name, rules := range map[string][]LimitSettings{
		"address":      {{Prefix: "a", Limit: many + " 1h"}},
		"header":       {{Prefix: "a", Limit: many + " 1h", Key: "{http.request.header.X-User}"}},
		"secret":       {{Prefix: "a", Limit: many + " 1h", Key: "{http.request.header.Authorization}"}},
		"three zones":  {{Prefix: "a", Limit: many + " 1h"}, {Prefix: "b", Limit: many + " 1h"}, {Prefix: "c", Limit: many + " 1h", Key: "all"}},
		"refused":      {{Prefix: "a", Limit: "1 1h"}},
		"cost by text": {{Prefix: "a", Limit: many + " 1h", Cost: "{http.request.header.X-Cost}"}},
	} {
		b.Run(name, func(b *testing.B) {
			h := newHandler(b, rules...)
			r := request()
			r.Header.Set("X-User", "ann")
			r.Header.Set("Authorization", "hunter2")
			r.Header.Set("X-Cost", "3")
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

func TestARequestNeedsFewAllocations(t *testing.T) {
	if raced {
		t.Skip("the race detector allocates memory itself; make test runs this test without it")
	}
	h := newHandler(t, LimitSettings{Prefix: "a", Limit: "1000000000 1h"})
	r, w := request(), header{http.Header{}}
	least := 100.0
	for range 5 { // goroutines of other tests allocate, too
		least = min(least, testing.AllocsPerRun(1000, func() {
			clear(w.of)
			if err := h.ServeHTTP(w, r, emptyPage); err != nil {
				t.Fatal(err)
			}
		}))
	}
	if least > 6 {
		t.Errorf("%v allocations a request, want 6 at most", least)
	}
}
