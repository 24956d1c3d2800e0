package integration

import (
	"bufio"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/pgratelimit/pg-ratelimit/internal/testkit/check"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/cluster"
	"github.com/pgratelimit/pg-ratelimit/internal/testkit/harness"
)

// stops are the ways in which proxies stop. grace is the grace period. before is called with the proxy, its
// configuration and the DSN of another database while responses run, and stop ends the proxy; nil sends one
// SIGTERM.
var stops = map[string]struct {
	kind, grace string
	before      func(t *testing.T, p *stoppable)
	stop        func(p *stoppable) error
}{
	"caddy":           {kind: "caddy", grace: "1s"},
	"traefik":         {kind: "traefik", grace: "3s"},
	"traefik at once": {kind: "traefik", grace: "0s"},
	"caddy by two signals": {kind: "caddy", grace: "1s", stop: func(p *stoppable) error {
		return p.StopBy(func() error {
			return errors.Join(syscall.Kill(p.PID(), syscall.SIGTERM), syscall.Kill(p.PID(), syscall.SIGTERM))
		})
	}},
	"caddy after a reload": {kind: "caddy", grace: "1s", before: func(t *testing.T, p *stoppable) {
		loadConfig(t, p.admin, p.config+"\n# another\n", http.StatusOK)
	}},
	"caddy after a reload to another database": {kind: "caddy", grace: "1s",
		before: func(t *testing.T, p *stoppable) {
			loadConfig(t, p.admin, strings.ReplaceAll(p.config, p.dsn, cluster.Open(t)), http.StatusOK)
		}},
}

// A proxy that stops while it passes on streams charges each request for what its client has received, after
// the grace period, and leaves nothing held. Its history has all requests, although their connections are
// open. Streams that end within the grace period end whole.
func TestStoppedProxyChargesWhatItHasSent(t *testing.T) {
	for name, way := range stops {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := cluster.Open(t)
			p := startStoppable(t, way.kind, way.grace, dsn, startEndlessStream(t))
			received := readStreams(t, p.url)
			if way.before != nil {
				way.before(t, p)
			}
			stop := p.Stop
			if way.stop != nil {
				stop = func() error { return way.stop(p) }
			}
			check.OK(t, stop())
			total := received()
			counted := countOf(t, dsn, "p", "%")
			least, most := total, total
			if way.stop != nil || way.grace == "0s" { // the last event of a stream may be lost
				most += openStreams
			}
			if way.grace == "0s" { // Traefik closes the connections meanwhile, and hides errors of writes
				least = total * 9 / 10
			}
			if counted > most || counted < least {
				t.Errorf("%d events are charged, and clients have received %d", counted, total)
			}
			check.Equal(t, "the sum of the ledger", cluster.Query[int64](t, dsn,
				"SELECT sum(input)::bigint FROM rate_limit_ledger"), counted)
			check.Equal(t, "what is held", cluster.Query[int64](t, dsn,
				"SELECT held FROM rate_limit_counters('p', true)"), 0)
			check.Equal(t, "requests in the history", cluster.Query[string](t, dsn, `SELECT concat_ws(' ',
				(SELECT sum(count) FROM rate_limit_audit), sum(requests)) FROM rate_limit_metrics
				WHERE granularity = 'minute'`), fmt.Sprint(openStreams, " ", openStreams))
			check.Equal(t, "the state", cluster.Query[string](t, dsn, stateSQL), stopped)
		})
	}
}

// A proxy that stops while its database is down says how many settlements are lost.
func TestStopWithoutTheDatabaseSaysWhatIsLost(t *testing.T) {
	t.Parallel()
	server := cluster.Private(t, cluster.Options{})
	backend := startEndlessStream(t)
	var proxies []*stoppable
	for _, kind := range []string{"caddy", "traefik"} {
		proxies = append(proxies, startStoppable(t, kind, "1s", server.DSN("postgres"), backend))
	}
	for _, p := range proxies {
		readStreams(t, p.url)
	}
	check.OK(t, server.Stop())
	for _, p := range proxies {
		check.OK(t, p.Stop())
		if want := fmt.Sprint(openStreams, " settlements are lost"); !strings.Contains(p.Log(), want) {
			t.Errorf("the log has no %q: %s", want, p.Log())
		}
	}
}

// stoppable is a proxy with a grace period. config and admin are those of a Caddy, and dsn is in config.
type stoppable struct {
	*proxy
	config, admin, dsn string
}

// startStoppable starts a proxy with a grace period and a limit of tokens.
func startStoppable(t *testing.T, kind, grace, dsn, backend string) *stoppable {
	t.Helper()
	routes := []route{{path: "/", backend: backend, limit: decideAlways(object{"dsn": dsn, "prefix": "p",
		"limit": "1000000 1h", "algorithm": "fixed_window", "key": "all", "unit": "tokens", "output": 1,
		"graceTimeOut": grace, "audit": "all"})}}
	if kind == "traefik" {
		lifeCycle := object{"graceTimeOut": grace}
		tr := startTraefikWith(t, "..", object{"transport": object{"lifeCycle": lifeCycle}},
			"INFO", routes)
		return &stoppable{proxy: &proxy{tr.Process, tr.url}}
	}
	address, admin := harness.FreeAddress(t), harness.FreeAddress(t)
	config := harness.Replace(t, caddyfile(address, dsn, routes), "admin off",
		"admin "+admin+"\n\tgrace_period "+grace)
	return &stoppable{startCaddyOn(t, address, config), config, admin, dsn}
}

// openStreams is the number of requests that run when a proxy stops.
const openStreams = 50

// stateSQL returns the state of all proxies, and stopped is its result after their end.
const (
	stateSQL = "SELECT string_agg(concat(state, ': ', summary), ' ') FROM rate_limit_state"
	stopped  = "stopped: No proxy counts in this database."
)

// readStreams starts all requests, and returns when each has received an event. The function that it returns
// waits for the ends of their responses, and returns the number of events that were received.
func readStreams(t *testing.T, url string) func() int64 {
	t.Helper()
	var received, running atomic.Int64
	var requests sync.WaitGroup
	client, closeIdle := harness.NewClient(openStreams)
	client.Timeout = awaitTimeout
	t.Cleanup(closeIdle)
	for range openStreams {
		requests.Go(func() {
			readEvents(t, client, url, func(events int64) {
				if received.Add(1); events == 1 {
					running.Add(1)
				}
			})
		})
	}
	await(t, "all streams", func() bool { return running.Load() == openStreams && received.Load() > 500 })
	return func() int64 {
		requests.Wait()
		return received.Load()
	}
}

// startEndlessStream starts an upstream with responses that report one more token with each event, and
// returns its URL. The events are so few that an interpreted proxy keeps up with those of 50 responses.
func startEndlessStream(t *testing.T) string {
	t.Helper()
	return harness.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for event := 1; r.Context().Err() == nil; event++ {
			_, _ = fmt.Fprintf(w, "data: "+usageBody+"\n\n", event, 0)
			_ = http.NewResponseController(w).Flush()
			time.Sleep(100 * time.Millisecond)
		}
	})
}

// readEvents sends a request, and calls event with the number of events so far after each one.
func readEvents(t *testing.T, client *http.Client, url string, event func(events int64)) {
	r, err := http.NewRequest(http.MethodPost, url, nil) // its end is the proxy's
	if err != nil {
		t.Error(err)
		return
	}
	response, err := client.Do(r)
	if err != nil {
		t.Error(err)
		return
	}
	defer response.Body.Close()
	events := int64(0)
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		if lines.Text() == "" {
			events++
			event(events)
		}
	}
}
